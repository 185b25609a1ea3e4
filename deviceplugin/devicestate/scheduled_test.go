package devicestate

import (
	stdcmp "cmp"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
)

// TestSchedulersChoice is the table of answers to what is written on a pod.
// Another pod has 60 % and 40 GiB of GPU 0, and one has GPU 7 exclusively.
func TestSchedulersChoice(t *testing.T) {
	type shares = map[string][]allocation.Share
	for _, tt := range []struct {
		name   string
		ask    string // default 30/10
		text   func(r *rig) string
		want   []int
		kind   string // of the rejection; empty if GPUs are given
		reason string
	}{
		{name: "a GPU with room", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "30/10")}}) }, want: []int{0}},
		{name: "an idle GPU", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(5, "30/10")}}) }, want: []int{5}},
		{name: "two GPUs", ask: "2:30/10", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(5, "30/10"), r.share(2, "30/10")}})
		}, want: []int{2, 5}},
		{name: "an exclusive GPU", ask: "", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {{UUID: r.gpuIDs(4)[0], VCore: 100, MemoryMiB: 81559}}})
		}, want: []int{4}},
		{name: "other containers too", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(3, "30/10")}, "unknown": {r.share(3, "99/1")}})
		}, want: []int{3}},

		{
			name: "another node's", text: func(r *rig) string { return text("gpu-2", shares{"main": {r.share(0, "30/10")}}) },
			kind: allocate.RejectedAllocation, reason: "annotation heddle.dev/sgpu-allocation is for node gpu-2, and this is gpu-1",
		},
		{
			name: "cut off", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "30/10")}})[:60] },
			kind: allocate.RejectedAllocation, reason: "unexpected EOF",
		},
		{name: "empty", text: func(*rig) string { return "" }, kind: allocate.RejectedAllocation, reason: "empty"},
		{name: "of a later version", text: func(r *rig) string {
			return strings.Replace(text("gpu-1", shares{"main": {r.share(0, "30/10")}}), `"version":1`, `"version":2`, 1)
		}, kind: allocate.RejectedAllocation, reason: "version 2 is unknown"},
		{name: "an unknown GPU", text: func(*rig) string {
			return text("gpu-1", shares{"main": {{UUID: "GPU-0", VCore: 30, MemoryMiB: 10240}}})
		}, kind: allocate.RejectedAllocation, reason: "heddle-scheduler chose GPU GPU-0, which this node does not share"},
		{
			name: "nothing for the container", text: func(r *rig) string { return text("gpu-1", shares{"other": {r.share(0, "30/10")}}) },
			kind: allocate.RejectedAllocation, reason: "has 0 GPUs for the container, which requests 1",
		},
		{name: "too many GPUs", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(0, "30/10"), r.share(1, "30/10")}})
		}, kind: allocate.RejectedAllocation, reason: "has 2 GPUs for the container, which requests 1"},
		{
			name: "too few GPUs", ask: "2:30/10", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "30/10")}}) },
			kind: allocate.RejectedAllocation, reason: "has 1 GPUs for the container, which requests 2",
		},
		{name: "one GPU twice", ask: "2:30/10", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(0, "30/10"), r.share(0, "30/10")}})
		}, kind: allocate.RejectedAllocation, reason: "is there twice"},
		{
			name: "more than is asked for", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(1, "31/10")}}) },
			kind: allocate.RejectedAllocation, reason: "gives vcore 31 and 10240 MiB",
		},
		{
			name: "less than is asked for", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(1, "30/9")}}) },
			kind: allocate.RejectedAllocation, reason: "gives vcore 30 and 9216 MiB",
		},
		{name: "negative", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {{UUID: r.gpuIDs(0)[0], VCore: -60, MemoryMiB: 10240}}})
		}, kind: allocate.RejectedAllocation, reason: "-60 is not between 0 and 100"},
		{
			name: "too much compute", ask: "50/10", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "50/10")}}) },
			kind: allocate.RejectedFull, reason: "heddle-scheduler chose a GPU that is not available: GPU 0: 40 % of 100 left; needs 50",
		},
		{
			name: "too much memory", ask: "10/50", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "10/50")}}) },
			kind: allocate.RejectedFull, reason: "GPU 0: 39.6 GiB of 79.6 left; needs 50",
		},
		{
			name: "a GPU that a pod has alone", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(7, "30/10")}}) },
			kind: allocate.RejectedFull, reason: "GPU 7: a consumer has it exclusively",
		},
		{
			name: "a GPU that the pod avoids", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(6, "30/10")}}) },
			kind: allocate.RejectedFull, reason: "GPU 6: the pod avoids it",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t)
			for i, other := range []string{"60/40", "100/70"} {
				gpu, name := i*7, "other-"+string(rune('a'+i))
				r.wants(name, map[string]string{wellknown.SGPUAllocation: text("gpu-1", shares{"main": {r.share(gpu, other)}})}, sharer("main", other))
				want := asks{slots: {r.slot(gpu, 0)}}
				r.allocate(pod(name), "main", want)
				r.start(want)
			}
			what := tt.ask
			if what == "" && tt.name != "an exclusive GPU" {
				what = "30/10"
			}
			r.wants("a", map[string]string{
				wellknown.SGPUAllocation: tt.text(r), "nvidia.com/nouse-gpuuuid": r.gpuIDs(6)[0],
			}, sharer("main", what))
			want := asks{slots: {r.slot(1, 3)}}
			if strings.HasPrefix(what, "2:") {
				want[slots] = append(want[slots], r.slot(2, 3))
			}
			r.allocate(pod("a"), "main", want)
			err := r.prepareShares(want)
			if tt.kind == "" {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, r.gpusOf("a", "main")); diff != "" {
					t.Errorf("GPUs (-want +got):\n%s", diff)
				}
				r.nothingOvercommitted()
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("error %v\nwant  %s", err, tt.reason)
			}
			if all := r.Rejections(); len(all) != 1 || all[0].Kind != tt.kind {
				t.Errorf("rejected %+v, want kind %s", all, tt.kind)
			}
			if got := r.gpusOf("a", "main"); got != nil {
				t.Errorf("it has GPUs %v", got)
			}
		})
	}
}

// TestHAMisChoice: the GPUs are HAMi's, the amounts the pod's own.
func TestHAMisChoice(t *testing.T) {
	for _, tt := range []struct {
		name   string
		chosen func(r *rig) string // HAMi's annotation; empty without
		own    bool                // heddle-scheduler's annotation has GPU 2
		// scheduler is the pod's; HAMi's if it is empty.
		scheduler string
		want      []int
		by        string
		kind      string
	}{
		{name: "its GPU", chosen: func(r *rig) string { return hamiShare(r.gpuIDs(6)[0]) }, want: []int{6}, by: allocation.ByHAMi},
		{name: "nothing", want: []int{4}, by: allocation.ByNode},
		{name: "cut off", chosen: func(*rig) string { return "[[" }, kind: allocate.RejectedAllocation},
		{name: "unknown", chosen: func(*rig) string { return hamiShare("GPU-0") }, kind: allocate.RejectedAllocation},
		{
			name: "heddle-scheduler's annotation on HAMi's pod", own: true,
			chosen: func(r *rig) string { return hamiShare(r.gpuIDs(6)[0]) }, want: []int{6}, by: allocation.ByHAMi,
		},
		{name: "heddle-scheduler's pod", own: true, scheduler: allocation.ByScheduler, want: []int{2}, by: allocation.ByScheduler},
		{
			name: "heddle-scheduler's annotation on a pod of neither", own: true, scheduler: "default-scheduler",
			kind: allocate.RejectedAllocation,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t)
			r.reconfigure(func(c *config.NodeConfig) { c.SGPU.HAMi.Enabled, c.SGPU.HAMi.SchedulerName = true, "hami-scheduler" })
			p := r.wants("a", map[string]string{}, sharer("main", "30/10"))
			p.Spec.NodeName, p.Spec.SchedulerName = "gpu-1", stdcmp.Or(tt.scheduler, "hami-scheduler")
			if tt.own {
				p.Annotations = r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(2, "30/10")}})
			}
			if tt.chosen != nil {
				maps.Copy(p.Annotations, map[string]string{
					wellknown.HAMiAllocation: tt.chosen(r), wellknown.HAMiChosenTime: "1795223838",
					wellknown.HAMiNode: "gpu-1", wellknown.HAMiBindTime: "1795223839",
				})
			}
			want := asks{slots: {r.slot(4, 0)}}
			r.allocate(pod("a"), "main", want)
			err := r.prepareShares(want)
			if tt.kind != "" {
				if all := r.Rejections(); err == nil || len(all) != 1 || all[0].Kind != tt.kind {
					t.Fatalf("error %v, rejections %+v", err, all)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a := r.View().Allocations()[0]
			if diff := cmp.Diff(tt.want, r.gpusOf("a", "main")); diff != "" || a.By != tt.by {
				t.Errorf("by %s (-want +got):\n%s", a.By, diff)
			}
			if a.Shares[0].VCore != 30 || a.Shares[0].MemoryMiB != 10240 {
				t.Errorf("share %+v", a.Shares[0])
			}
		})
	}
}

func hamiShare(uuid string) string { return `[[{"uuid":"` + uuid + `","compute":30,"vRam":10240}]]` }

// TestUnknownPod: without what the pod asks for nothing is decided, and the
// kubelet asks again; once decided it need not be known.
func TestUnknownPod(t *testing.T) {
	r := shareRig(t)
	want := asks{slots: {r.slot(0, 0)}}
	names := r.allocate(pod("a"), "main", want)
	if err := r.prepareShares(want); err == nil || !strings.Contains(err.Error(), "is not known yet") {
		t.Errorf("error %v", err)
	}
	if len(r.Rejections()) > 0 {
		t.Errorf("rejected: %+v", r.Rejections())
	}
	r.wants("a", nil, sharer("main", "30/10"))
	r.start(want)
	first := r.mustEnter(names)
	delete(r.specs.pods, "default/a")
	r.restart()
	r.start(want)
	if diff := cmp.Diff(first.Devices, r.mustEnter(names).Devices); diff != "" {
		t.Errorf("the pod is not known any more (-before +now):\n%s", diff)
	}
}

func TestPolicies(t *testing.T) {
	r := shareRig(t, config.GPURef("0"))
	policy := func(name, text, policy string, slot int) error {
		r.wants(name, map[string]string{"nvidia.com/sgpu-qos-policy": policy}, sharer("main", text))
		want := asks{slots: {r.slot(0, slot)}}
		r.allocate(pod(name), "main", want)
		return r.prepareShares(want)
	}
	if err := policy("a", "/10", "best-effort", 0); err != nil {
		t.Fatal(err)
	}
	if err := policy("b", "90/10", "best-effort", 1); err != nil {
		t.Fatal(err)
	}
	if err := policy("c", "1/1", "fixed-share", 2); err == nil || !strings.Contains(err.Error(), "its consumers are best-effort") {
		t.Errorf("error %v", err)
	}
	if err := policy("d", "1/1", "fixed", 3); err == nil || !strings.Contains(err.Error(), "none of fixed-share") {
		t.Errorf("error %v", err)
	}
	for _, b := range r.View().Allocations() {
		if b.Policy != "best-effort" {
			t.Errorf("%+v", b)
		}
	}
}
