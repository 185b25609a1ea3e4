package binder

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLostDevicesAreNobodyElses: a kubelet without its checkpoint offers what
// running containers have.
func TestLostDevicesAreNobodyElses(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.specs["default/a"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-a"}}
	had := asks{gpus: r.cards(0, 1)}
	r.allocate(pod("a"), "main", had)
	r.start(had)
	if lost := r.Lost(gpus); lost != nil {
		t.Errorf("lost before anything was: %v", lost)
	}
	r.kubelet.Stop()
	r.kubelet.Wipe()
	r.kubelet.Up()
	r.collect()
	if got := slices.Sorted(maps.Keys(r.Lost(gpus))); !slices.Equal(got, sorted(had[gpus])) {
		t.Errorf("lost %v, want %v", got, had[gpus])
	}
	held, err := r.Holders(t.Context(), gpus)
	if err != nil || len(held) != 2 {
		t.Errorf("held: %v, %v", held, err)
	}
	// Somebody gets one of them all the same, and waits.
	want := asks{gpus: r.cards(1, 2)}
	names := r.allocate(pod("b"), "main", want)
	if err := r.Bind(t.Context(), gpus, want[gpus]); err == nil ||
		!strings.Contains(err.Error(), "is in use by container main of default/a, which the kubelet has forgotten: delete that pod") {
		t.Errorf("error %v", err)
	}
	if _, err := r.enter(names); err == nil {
		t.Error("the names lead to devices")
	}
	r.kubelet.Delete("default", "a")
	r.start(want)
	r.mustEnter(names)
	if lost := r.Lost(gpus); len(lost) > 0 {
		t.Errorf("still lost: %v", lost)
	}
}

// TestNamesakeHasLostNothing: a pod made anew under an old name that asks for
// no devices, as a StatefulSet's after an edit.
func TestNamesakeHasLostNothing(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(0)}
	r.allocate(pod("web-0"), "main", want)
	r.start(want)
	r.kubelet.Delete("default", "web-0")
	p := pod("web-0")
	p.UID = "another"
	r.allocate(p, "main", nil)
	r.collect()
	if e := r.events.take(); len(e) > 0 || len(r.Lost(gpus)) > 0 {
		t.Errorf("events %v, lost %v", e, r.Lost(gpus))
	}
}

// TestAStartingKubeletAndGonePods: while nobody knows what a new kubelet has
// lost, the devices of pods that are gone are as good as any.
func TestAStartingKubeletAndGonePods(t *testing.T) {
	r := newRig(t, "dgx-h100")
	complete := false
	r.options.Known = func(p Pod) (*corev1.Pod, bool) {
		if p.Name == "a" {
			return &corev1.Pod{}, complete
		}
		return nil, complete
	}
	r.restart()
	a, b := asks{gpus: r.cards(0)}, asks{gpus: r.cards(1)}
	r.allocate(pod("a"), "main", a)
	r.allocate(pod("b"), "main", b)
	r.start(a)
	r.start(b)
	r.Wake()
	if got := slices.Sorted(maps.Keys(r.Lost(gpus))); len(got) != 2 {
		t.Errorf("in use %v, want those of both: the API server has not shown all pods yet", got)
	}
	complete = true
	if got := slices.Sorted(maps.Keys(r.Lost(gpus))); !slices.Equal(got, a[gpus]) {
		t.Errorf("in use %v, want those of the pod that is there: %v", got, a[gpus])
	}
}
