package binder

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// TestSchedulersChoice is the table of answers to what is written on a pod.
// Another pod has 60 % and 40 GiB of card 0, and one has card 7 whole.
func TestSchedulersChoice(t *testing.T) {
	type shares = map[string][]allocation.Share
	for _, tt := range []struct {
		name string
		ask  string // default 30/10
		text func(r *rig) string
		want []int
		kind string // of the refusal, without cards
		says string
	}{
		{name: "a card with room", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "30/10")}}) }, want: []int{0}},
		{name: "an idle card", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(5, "30/10")}}) }, want: []int{5}},
		{name: "two cards", ask: "2:30/10", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(5, "30/10"), r.share(2, "30/10")}})
		}, want: []int{2, 5}},
		{name: "the whole of a card", ask: "", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {{UUID: r.cards(4)[0], VCore: 100, MemoryMiB: 81559}}})
		}, want: []int{4}},
		{name: "other containers too", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(3, "30/10")}, "nobody": {r.share(3, "99/1")}})
		}, want: []int{3}},

		{
			name: "another node's", text: func(r *rig) string { return text("gpu-2", shares{"main": {r.share(0, "30/10")}}) },
			kind: RefusedAllocation, says: "annotation heddle.dev/sgpu-allocation is for node gpu-2, and this is gpu-1",
		},
		{
			name: "cut off", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "30/10")}})[:60] },
			kind: RefusedAllocation, says: "unexpected EOF",
		},
		{name: "empty", text: func(*rig) string { return "" }, kind: RefusedAllocation, says: "empty"},
		{name: "of a later version", text: func(r *rig) string {
			return strings.Replace(text("gpu-1", shares{"main": {r.share(0, "30/10")}}), `"version":1`, `"version":2`, 1)
		}, kind: RefusedAllocation, says: "version 2 is unknown"},
		{name: "a card that nobody has", text: func(*rig) string {
			return text("gpu-1", shares{"main": {{UUID: "GPU-0", VCore: 30, MemoryMiB: 10240}}})
		}, kind: RefusedAllocation, says: "heddle-scheduler chose card GPU-0, which this node does not share"},
		{
			name: "nothing for the container", text: func(r *rig) string { return text("gpu-1", shares{"other": {r.share(0, "30/10")}}) },
			kind: RefusedAllocation, says: "has 0 cards for the container, which asks for 1",
		},
		{name: "too many cards", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(0, "30/10"), r.share(1, "30/10")}})
		}, kind: RefusedAllocation, says: "has 2 cards for the container, which asks for 1"},
		{
			name: "too few cards", ask: "2:30/10", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "30/10")}}) },
			kind: RefusedAllocation, says: "has 1 cards for the container, which asks for 2",
		},
		{name: "one card twice", ask: "2:30/10", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {r.share(0, "30/10"), r.share(0, "30/10")}})
		}, kind: RefusedAllocation, says: "is there twice"},
		{
			name: "more than is asked for", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(1, "31/10")}}) },
			kind: RefusedAllocation, says: "gives vcore 31 and 10240 MiB",
		},
		{
			name: "less than is asked for", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(1, "30/9")}}) },
			kind: RefusedAllocation, says: "gives vcore 30 and 9216 MiB",
		},
		{name: "negative", text: func(r *rig) string {
			return text("gpu-1", shares{"main": {{UUID: r.cards(0)[0], VCore: -60, MemoryMiB: 10240}}})
		}, kind: RefusedAllocation, says: "-60 is not between 0 and 100"},
		{
			name: "too much compute", ask: "50/10", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "50/10")}}) },
			kind: RefusedFull, says: "heddle-scheduler chose a card that cannot be had: card 0: 40 % of 100 left; needs 50",
		},
		{
			name: "too much memory", ask: "10/50", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(0, "10/50")}}) },
			kind: RefusedFull, says: "card 0: 39.6 GiB of 79.6 left; needs 50",
		},
		{
			name: "a card that somebody has alone", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(7, "30/10")}}) },
			kind: RefusedFull, says: "card 7: a tenant has it alone",
		},
		{
			name: "a card that the pod avoids", text: func(r *rig) string { return text("gpu-1", shares{"main": {r.share(6, "30/10")}}) },
			kind: RefusedFull, says: "card 6: the pod avoids it",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t)
			for i, other := range []string{"60/40", "100/70"} {
				card, name := i*7, "other-"+string(rune('a'+i))
				r.wants(name, map[string]string{wellknown.SGPUAllocation: text("gpu-1", shares{"main": {r.share(card, other)}})}, sharer("main", other))
				want := asks{slots: {r.slot(card, 0)}}
				r.allocate(pod(name), "main", want)
				r.start(want)
			}
			what := tt.ask
			if what == "" && tt.name != "the whole of a card" {
				what = "30/10"
			}
			r.wants("a", map[string]string{
				wellknown.SGPUAllocation: tt.text(r), "nvidia.com/nouse-gpuuuid": r.cards(6)[0],
			}, sharer("main", what))
			want := asks{slots: {r.slot(1, 3)}}
			if strings.HasPrefix(what, "2:") {
				want[slots] = append(want[slots], r.slot(2, 3))
			}
			r.allocate(pod("a"), "main", want)
			err := r.bindShares(want)
			if tt.kind == "" {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, r.cardsOf("a", "main")); diff != "" {
					t.Errorf("cards (-want +got):\n%s", diff)
				}
				r.nothingOvercommitted()
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v\nwant  %s", err, tt.says)
			}
			if all := r.Refused(); len(all) != 1 || all[0].Kind != tt.kind {
				t.Errorf("refused %+v, want kind %s", all, tt.kind)
			}
			if got := r.cardsOf("a", "main"); got != nil {
				t.Errorf("it has cards %v", got)
			}
		})
	}
}

// other is a scheduler of others.
type other func(pod *corev1.Pod, container string) ([]allocation.Share, error)

func (o other) Scheduled(p *corev1.Pod, container string, _ *quota.Request) ([]allocation.Share, string, error) {
	shares, err := o(p, container)
	return shares, allocation.ByHAMi, err
}

func TestAnotherSchedulersChoice(t *testing.T) {
	for _, tt := range []struct {
		name string
		says func(r *rig) ([]allocation.Share, error)
		own  bool // heddle-scheduler chose card 2
		want []int
		by   string
		kind string
	}{
		{name: "its card, and the pod's own amounts", says: func(r *rig) ([]allocation.Share, error) {
			return []allocation.Share{{UUID: r.cards(6)[0], VCore: 100, MemoryMiB: 1}}, nil
		}, want: []int{6}, by: allocation.ByHAMi},
		{name: "nothing", says: func(*rig) ([]allocation.Share, error) { return nil, nil }, want: []int{4}, by: allocation.ByNode},
		{name: "not believed", says: func(*rig) ([]allocation.Share, error) { return nil, errors.New("forged") }, kind: RefusedAllocation},
		{name: "too many", says: func(r *rig) ([]allocation.Share, error) {
			return []allocation.Share{r.share(0, "1/1"), r.share(1, "1/1")}, nil
		}, kind: RefusedAllocation},
		{name: "unknown", says: func(*rig) ([]allocation.Share, error) {
			return []allocation.Share{{UUID: "GPU-0"}}, nil
		}, kind: RefusedAllocation},
		{name: "heddle-scheduler's comes first", own: true, says: func(r *rig) ([]allocation.Share, error) {
			return []allocation.Share{{UUID: r.cards(6)[0]}}, nil
		}, want: []int{2}, by: allocation.ByScheduler},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t)
			r.options.Scheduler = other(func(*corev1.Pod, string) ([]allocation.Share, error) { return tt.says(r) })
			r.restart()
			r.wants("a", nil, sharer("main", "30/10"))
			if tt.own {
				r.specs["default/a"].Annotations = r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(2, "30/10")}})
			}
			want := asks{slots: {r.slot(4, 0)}}
			r.allocate(pod("a"), "main", want)
			err := r.bindShares(want)
			if tt.kind != "" {
				if all := r.Refused(); err == nil || len(all) != 1 || all[0].Kind != tt.kind {
					t.Fatalf("error %v, refused %+v", err, all)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b := r.Bindings()[0]
			if diff := cmp.Diff(tt.want, r.cardsOf("a", "main")); diff != "" || b.By != tt.by {
				t.Errorf("by %s (-want +got):\n%s", b.By, diff)
			}
			if b.Shares[0].VCore != 30 || b.Shares[0].MemoryMiB != 10240 {
				t.Errorf("share %+v", b.Shares[0])
			}
		})
	}
}

// TestUnknownPod: without what the pod asks for nothing is decided, and the
// kubelet asks again; once decided it need not be known.
func TestUnknownPod(t *testing.T) {
	r := shareRig(t)
	want := asks{slots: {r.slot(0, 0)}}
	names := r.allocate(pod("a"), "main", want)
	if err := r.bindShares(want); err == nil || !strings.Contains(err.Error(), "is not known yet") {
		t.Errorf("error %v", err)
	}
	if len(r.Refused()) > 0 {
		t.Errorf("refused: %+v", r.Refused())
	}
	r.wants("a", nil, sharer("main", "30/10"))
	r.start(want)
	first := r.mustEnter(names)
	delete(r.specs, "default/a")
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
		return r.bindShares(want)
	}
	if err := policy("a", "/10", "best-effort", 0); err != nil {
		t.Fatal(err)
	}
	if err := policy("b", "90/10", "best-effort", 1); err != nil {
		t.Fatal(err)
	}
	if err := policy("c", "1/1", "fixed-share", 2); err == nil || !strings.Contains(err.Error(), "its tenants are best-effort") {
		t.Errorf("error %v", err)
	}
	if err := policy("d", "1/1", "fixed", 3); err == nil || !strings.Contains(err.Error(), "none of fixed-share") {
		t.Errorf("error %v", err)
	}
	for _, b := range r.Bindings() {
		if b.Policy != "best-effort" {
			t.Errorf("%+v", b)
		}
	}
}
