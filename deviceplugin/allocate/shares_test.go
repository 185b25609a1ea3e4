package allocate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

// What heddle-scheduler wrote on a pod is done, or the container is rejected. Another
// pod has 60 % and 40 GiB of GPU 0, and one has GPU 7 exclusively.
func TestSchedulersChoice(t *testing.T) {
	type shares = map[string][]allocation.Share
	const key = wellknown.SGPUAllocation
	good := chose("gpu-1", "30/10", 0)
	edited := func(edit func(string) string) func(*rig) map[string]string {
		return func(r *rig) map[string]string { return map[string]string{key: edit(good(r)[key])} }
	}
	for _, s := range []scene{
		{name: "a GPU with room", annotations: good, want: []int{0}, by: allocation.ByScheduler},
		{name: "an idle GPU", annotations: chose("gpu-1", "30/10", 5), want: []int{5}},
		{name: "two GPUs", ask: "2:30/10", ids: []int{1, 2}, annotations: chose("gpu-1", "30/10", 5, 2), want: []int{2, 5}},
		{name: "an exclusive GPU", ask: "/", annotations: func(r *rig) map[string]string {
			return r.chosen("gpu-1", shares{"main": {{UUID: r.uuid(4), VCore: 100, MemoryMiB: 81559}}})
		}, want: []int{4}},
		{name: "other containers too", annotations: func(r *rig) map[string]string {
			return r.chosen("gpu-1", shares{"main": {r.share(3, "30/10")}, "unknown": {r.share(3, "99/1")}})
		}, want: []int{3}},
		{
			name: "another node's", annotations: chose("gpu-2", "30/10", 0),
			kind: RejectedAllocation, reason: "annotation heddle.dev/sgpu-allocation is for node gpu-2, and this is gpu-1",
		},
		{
			name: "cut off", annotations: edited(func(text string) string { return text[:60] }),
			kind: RejectedAllocation, reason: "unexpected EOF",
		},
		{name: "empty", annotations: edited(func(string) string { return "" }), kind: RejectedAllocation, reason: "empty"},
		{
			name: "of a later version", annotations: edited(func(text string) string {
				return strings.Replace(text, `"version":1`, `"version":2`, 1)
			}), kind: RejectedAllocation, reason: "version 2",
		},
		{name: "an unknown GPU", annotations: func(r *rig) map[string]string {
			return r.chosen("gpu-1", shares{"main": {{UUID: "GPU-0", VCore: 30, MemoryMiB: 10240}}})
		}, kind: RejectedAllocation, reason: "heddle-scheduler chose GPU GPU-0, which this node does not share"},
		{name: "nothing for the container", annotations: func(r *rig) map[string]string {
			return r.chosen("gpu-1", shares{"other": {r.share(0, "30/10")}})
		}, kind: RejectedAllocation, reason: "has 0 GPUs for the container, which requests 1"},
		{
			name: "too many GPUs", annotations: chose("gpu-1", "30/10", 0, 1),
			kind: RejectedAllocation, reason: "has 2 GPUs for the container, which requests 1",
		},
		{name: "one GPU twice", ask: "2:30/10", ids: []int{1, 2}, annotations: chose("gpu-1", "30/10", 0, 0), kind: RejectedAllocation},
		{
			name: "more than is asked for", annotations: chose("gpu-1", "31/10", 1),
			kind: RejectedAllocation, reason: "gives vcore 31 and 10240 MiB",
		},
		{
			name: "less than is asked for", annotations: chose("gpu-1", "30/9", 1),
			kind: RejectedAllocation, reason: "gives vcore 30 and 9216 MiB",
		},
		{name: "negative", annotations: func(r *rig) map[string]string {
			return r.chosen("gpu-1", shares{"main": {{UUID: r.uuid(0), VCore: -60, MemoryMiB: 10240}}})
		}, kind: RejectedAllocation, reason: "-60 is not between 0 and 100"},
		{
			name: "too much compute", ask: "50/10", annotations: chose("gpu-1", "50/10", 0),
			kind: RejectedFull, reason: "heddle-scheduler chose a GPU that is not available: GPU 0: 40 % of 100 left; needs 50",
		},
		{
			name: "too much memory", ask: "10/50", annotations: chose("gpu-1", "10/50", 0),
			kind: RejectedFull, reason: "GPU 0: 39.6 GiB of 79.6 left; needs 50",
		},
		{
			name: "a GPU that a pod has alone", annotations: chose("gpu-1", "30/10", 7),
			kind: RejectedFull, reason: "GPU 7: a consumer has it exclusively",
		},
		{name: "a GPU that the pod avoids", annotations: func(r *rig) map[string]string {
			all := chose("gpu-1", "30/10", 6)(r)
			all["nvidia.com/nouse-gpuuuid"] = r.uuid(6)
			return all
		}, kind: RejectedFull, reason: "GPU 6: the pod avoids it"},
	} {
		if s.taken = map[int]string{0: "60/40", 7: "100/70"}; s.ask == "" {
			s.ask = "30/10"
		}
		t.Run(s.name, s.run)
	}
}

// The GPUs are HAMi's, the amounts the pod's own.
func TestHAMisChoice(t *testing.T) {
	hami := func(chosen func(*rig) string, own ...int) func(*rig) map[string]string {
		return func(r *rig) map[string]string {
			all := map[string]string{
				wellknown.HAMiAllocation: chosen(r), wellknown.HAMiChosenTime: "1795223838",
				wellknown.HAMiNode: "gpu-1", wellknown.HAMiBindTime: "1795223839",
			}
			if len(own) > 0 {
				maps.Copy(all, chose("gpu-1", "30/10", own...)(r))
			}
			return all
		}
	}
	gpu6 := func(r *rig) string { return `[[{"uuid":"` + r.uuid(6) + `","compute":30,"vRam":10240}]]` }
	unknown := func(*rig) string { return `[[{"uuid":"GPU-0","compute":30,"vRam":10240}]]` }
	for _, s := range []scene{
		{name: "its GPU", annotations: hami(gpu6), want: []int{6}, by: allocation.ByHAMi},
		{name: "nothing", want: []int{4}, by: allocation.ByNode},
		{name: "cut off", annotations: hami(func(*rig) string { return "[[" }), kind: RejectedAllocation},
		{name: "unknown", annotations: hami(unknown), kind: RejectedAllocation},
		{
			name: "heddle-scheduler's annotation on HAMi's pod", annotations: hami(gpu6, 2),
			want: []int{6}, by: allocation.ByHAMi,
		},
		{
			name: "heddle-scheduler's pod", scheduler: allocation.ByScheduler, annotations: chose("gpu-1", "30/10", 2),
			want: []int{2}, by: allocation.ByScheduler,
		},
		{
			name: "heddle-scheduler's annotation on a pod of neither", scheduler: "default-scheduler",
			annotations: chose("gpu-1", "30/10", 2), kind: RejectedAllocation,
		},
	} {
		s.ask, s.ids = "30/10", []int{4}
		s.change = func(c *config.NodeConfig) { c.SGPU.HAMi = config.HAMiOn }
		if s.scheduler == "" {
			s.scheduler = "hami-scheduler"
		}
		t.Run(s.name, s.run)
	}
}

// Without a scheduler's choice the node chooses.
func TestNodePlaces(t *testing.T) {
	for _, s := range []scene{
		{name: "the GPU that the device ID names, of equal ones", ask: "10/1", ids: []int{5}, want: []int{5}},
		{name: "the fullest that suffices", taken: map[int]string{0: "30/1", 1: "50/1"}, ask: "40/1", ids: []int{0}, want: []int{1}},
		{
			name: "spread", change: func(c *config.NodeConfig) { c.SGPU.Placement = config.PlacementSpread },
			taken: map[int]string{0: "30/1"}, ask: "40/1", ids: []int{0}, want: []int{1},
		},
		{name: "several GPUs", ask: "2:10/1", ids: []int{6, 4}, want: []int{4, 6}},
		{
			name: "eight GPUs, and the kubelet chose slots of three", ask: "8:10/4", ids: []int{0, 0, 0, 0, 1, 1, 2, 2},
			want: []int{0, 1, 2, 3, 4, 5, 6, 7},
		},
		{name: "a GPU alone", taken: map[int]string{0: "1/1"}, ask: "/4", ids: []int{0}, want: []int{1}},
		{name: "an exclusive GPU", ask: "", ids: []int{2}, want: []int{2}},
		{
			name: "two with 40 % left", taken: map[int]string{0: "60/1", 1: "60/1"}, ask: "60/1", ids: []int{0},
			change: shareOnly("0", "1"), kind: RejectedFull,
			reason: "container main gets no GPU: none of 2 GPUs can give 60 % of compute and 1 GiB. " +
				"GPUs 0-1: 40 % of 100 left; needs 60",
		},
		{
			name: "no scheduler chose", change: func(c *config.NodeConfig) { c.SGPU.Unscheduled = config.UnscheduledReject },
			ask: "10/1", ids: []int{0}, kind: RejectedUnscheduled,
			reason: "container main gets no GPU: no scheduler chose a GPU, and sgpu.unscheduled is reject",
		},
		{name: "more memory than any GPU", ask: "10/100", kind: RejectedFull, reason: "79.6 GiB in all; needs 100", never: true},
		{
			name: "more GPUs than there are", ask: "9:10/1", ids: []int{0, 1, 2, 3, 4, 5, 6, 7, 0},
			kind: RejectedFull, reason: "9 GPUs are requested and the node shares 8", never: true,
		},
		{name: "vcore 0", ask: "0/1", kind: RejectedRequest, reason: "nvidia.com/vcore: 0"},
		{name: "vcore 101", ask: "101/1", kind: RejectedRequest, reason: "nvidia.com/vcore: 101"},
		{name: "fewer device IDs than it asks for", ask: "2:10/1", reason: "holds 1 device IDs of shares and requests 2 GPUs"},
	} {
		t.Run(s.name, s.run)
	}
}

// A container that the kubelet's CPU manager gave processors of its own gets a share
// near them, whatever its device IDs name. GPUs 0 to 3 of this machine are of NUMA
// node 0, as are processors 0-55 and 112-167.
func TestSharesFollowTheProcessors(t *testing.T) {
	small, large := map[int]string{0: "50/1", 4: "30/1"}, map[int]string{0: "30/1", 4: "50/1"}
	for _, s := range []scene{
		{name: "no processors: the fullest", taken: small, want: []int{0}},
		{name: "processors of the other node", taken: small, cpus: []int64{60}, want: []int{4}},
		{name: "processors of both nodes", taken: small, cpus: []int64{1, 223}, want: []int{0}},
		{name: "a processor of no known node", taken: small, cpus: []int64{999}, want: []int{0}},
		{
			name: "no room near", taken: large, ask: "60/1", cpus: []int64{60}, change: shareOnly("0", "4"), want: []int{0},
			warning: "container main has a share of GPU 0, which is of NUMA node 0, and the container's processors are of 1",
		},
		{
			name: "a scheduler chose", taken: small, cpus: []int64{60}, annotations: chose("gpu-1", "10/1", 1), want: []int{1},
			warning: "container main has a share of GPU 1, which is of NUMA node 0, and the container's processors are of 1",
		},
	} {
		if s.ids = []int{0}; s.ask == "" {
			s.ask = "10/1"
		}
		t.Run(s.name, s.run)
	}
}

// A GPU that is about to change its mode takes the container that holds a slot of
// it, since it waits for that one's end in any case, and no other.
func TestDrainingGPU(t *testing.T) {
	r := shareRig(t)
	r.change = func(inv *inventory.Inventory) {
		for i := range inv.Shared {
			inv.Shared[i].Unhealthy, inv.Shared[i].Draining = "moves to native when default/a ends", true
		}
	}
	if err := r.consumer("a", "60/4", 3, 0); err != nil || !slices.Equal(r.gpusOf(), []int{3}) {
		t.Errorf("GPUs %v, %v", r.gpusOf(), err)
	}
	// Its GPU has 40 % left, and no other GPU is available.
	if err := r.consumer("b", "60/4", 3, 1); err == nil || !strings.Contains(err.Error(), "GPU 3: 40 % of 100 left; needs 60") || never(err) {
		t.Errorf("error %v, never %t: the GPUs come back", err, never(err))
	}
}

func TestPolicies(t *testing.T) {
	r := shareRig(t, shareOnly("0"))
	for i, tt := range []struct{ text, policy, reason string }{
		{"/10", "best-effort", ""},
		{"90/10", "best-effort", ""},
		{"1/1", "fixed-share", "its consumers are best-effort"},
		{"1/1", "fixed", "fixed-share"},
	} {
		name := "p" + itoa(i)
		r.wants(name, map[string]string{"nvidia.com/sgpu-qos-policy": tt.policy}, inventorytest.Sharer("main", tt.text))
		r.allocate(name, "main", slots, r.slot(0, i))
		_, err := r.start(name, "main")
		if (err == nil) != (tt.reason == "") || err != nil && !strings.Contains(err.Error(), tt.reason) {
			t.Errorf("%s with %s: %v", tt.policy, tt.text, err)
		}
	}
}

// Shares may have 1.5 times the memory of a GPU, and a container no more than the GPU.
func TestMemoryOvercommit(t *testing.T) {
	r := shareRig(t, shareOnly("0"), func(c *config.NodeConfig) { c.SGPU.MemoryOvercommit = 1.5 })
	for i, tt := range []struct{ text, reason string }{
		{"10/39", ""},
		{"10/39", ""},
		{"10/39", ""},
		{"10/39", "2.4 GiB of 119.5 left; needs 39"},
		{"10/80", "79.6 GiB in all; needs 80"},
	} {
		err := r.consumer("p"+itoa(i), tt.text, 0, i)
		if (err == nil) != (tt.reason == "") || err != nil && !strings.Contains(err.Error(), tt.reason) {
			t.Errorf("container %d: %v, want %q", i, err, tt.reason)
		}
	}
	if g := r.node().SharedGPUs()[0]; g.UsedMiB != 3*39<<10 || g.MemoryMiB != 81559 {
		t.Errorf("%d of %d MiB are taken", g.UsedMiB, g.MemoryMiB)
	}
}

// The GPUs of all containers of a pod are decided when the first one starts, or
// none is.
func TestAllOfAPodOrNothing(t *testing.T) {
	for _, tt := range []struct{ vcore, reason string }{{"50", ""}, {"60", "container b gets no GPU"}} {
		r := shareRig(t, shareOnly("0"))
		r.wants("two", nil, inventorytest.Sharer("a", tt.vcore+"/1"), inventorytest.Sharer("b", tt.vcore+"/1"))
		r.allocate("two", "a", slots, r.slot(0, 0))
		r.allocate("two", "b", slots, r.slot(0, 1))
		if _, err := r.start("two", "a"); tt.reason != "" && (err == nil || !strings.Contains(err.Error(), tt.reason)) {
			t.Errorf("%s %% each: %v", tt.vcore, err)
		}
		if err := r.consumer("one", "90/1", 0, 2); (err == nil) != (tt.reason != "") {
			t.Errorf("another pod, beside one with %s %% twice: %v", tt.vcore, err)
		}
	}
}

func TestPhasesOfAPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(c corev1.Container) corev1.Container {
		c.RestartPolicy = &always
		return c
	}
	type list = []corev1.Container
	for _, tt := range []struct {
		name       string
		init, apps list
		fits       string // what another pod can still have
		wants      string // what it cannot
		none       bool   // the pod itself does not fit
	}{
		{name: "an init container and one app", init: list{inventorytest.Sharer("i", "30/1")}, apps: list{inventorytest.Sharer("a", "60/1")}, fits: "40/1", wants: "41/1"},
		{name: "a larger init container", init: list{inventorytest.Sharer("i", "70/1")}, apps: list{inventorytest.Sharer("a", "60/1")}, fits: "30/1", wants: "31/1"},
		{
			name: "init containers run one by one", init: list{inventorytest.Sharer("i", "70/1"), inventorytest.Sharer("j", "80/1")},
			apps: list{inventorytest.Sharer("a", "40/1"), inventorytest.Sharer("b", "40/1")}, fits: "20/1", wants: "21/1",
		},
		{
			name: "a sidecar runs beside what comes after it",
			init: list{inventorytest.Sharer("i", "80/1"), sidecar(inventorytest.Sharer("s", "20/1")), inventorytest.Sharer("j", "70/1")},
			apps: list{inventorytest.Sharer("a", "60/1")}, fits: "10/1", wants: "11/1",
		},
		{name: "alone in its phase", init: list{inventorytest.Sharer("i", "100/1")}, apps: list{inventorytest.Sharer("a", "100/1")}, wants: "1/1"},
		{name: "too much beside its sidecar", init: list{sidecar(inventorytest.Sharer("s", "50/1"))}, apps: list{inventorytest.Sharer("a", "60/1")}, none: true},
		{name: "memory too", init: list{inventorytest.Sharer("i", "1/70")}, apps: list{inventorytest.Sharer("a", "1/40")}, fits: "1/9", wants: "1/10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, shareOnly("0"))
			r.wants("p", nil, tt.apps...).Spec.InitContainers = tt.init
			all := slices.Concat(tt.init, tt.apps)
			for i, c := range all {
				r.allocate("p", c.Name, slots, r.slot(0, i))
			}
			for _, c := range all {
				if _, err := r.start("p", c.Name); (err != nil) != tt.none {
					t.Fatalf("error %v", err)
				}
			}
			if tt.wants != "" && r.consumer("more", tt.wants, 0, 14) == nil {
				t.Errorf("another pod has %s", tt.wants)
			}
			if tt.fits != "" {
				if err := r.consumer("fits", tt.fits, 0, 15); err != nil {
					t.Errorf("another pod does not get %s: %v", tt.fits, err)
				}
			}
		})
	}
}
