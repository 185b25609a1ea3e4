package devicestate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// TestForgottenDevicesGoToNoOtherPod: a kubelet without its checkpoint offers what
// running containers have.
func TestForgottenDevicesGoToNoOtherPod(t *testing.T) {
	r := newRig(t)
	r.specs.pods["default/a"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-a"}}
	had := asks{gpus: r.gpuIDs(0, 1)}
	r.allocate(pod("a"), "main", had)
	r.start(had)
	if lost := r.Forgotten(gpus); len(lost) > 0 {
		t.Errorf("lost before anything was: %v", lost)
	}
	r.kubelet.Stop()
	r.kubelet.Wipe()
	r.kubelet.Up()
	r.collect()
	if got := slices.Sorted(maps.Keys(r.Forgotten(gpus))); !slices.Equal(got, kubelet.SortIDs(had[gpus])) {
		t.Errorf("lost %v, want %v", got, had[gpus])
	}
	held, err := r.Holders(t.Context(), gpus)
	if err != nil || len(held) != 2 {
		t.Errorf("held: %v, %v", held, err)
	}
	// Another pod gets one of them all the same, and waits.
	want := asks{gpus: r.gpuIDs(1, 2)}
	names := r.allocate(pod("b"), "main", want)
	if err := r.Prepare(t.Context(), gpus, want[gpus]); err == nil ||
		!strings.Contains(err.Error(), "may be in use by container main of default/a: the kubelet has forgotten its devices; delete that pod") {
		t.Errorf("error %v", err)
	}
	if _, err := r.enter(names); err == nil {
		t.Error("the names lead to devices")
	}
	r.kubelet.Delete("default", "a")
	delete(r.specs.pods, "default/a")
	r.start(want)
	r.mustEnter(names)
	if lost := r.Forgotten(gpus); len(lost) > 0 {
		t.Errorf("still lost: %v", lost)
	}
}

// TestNamesakeHasForgottenNothing: a pod made again under an old name that asks for
// no devices, as a StatefulSet's after an edit.
func TestNamesakeHasForgottenNothing(t *testing.T) {
	r := newRig(t)
	want := asks{gpus: r.gpuIDs(0)}
	r.allocate(pod("web-0"), "main", want)
	r.start(want)
	r.kubelet.Delete("default", "web-0")
	p := pod("web-0")
	p.UID = "another"
	r.allocate(p, "main", nil)
	r.collect()
	if e := r.specs.takeEvents(); len(e) > 0 || len(r.Forgotten(gpus)) > 0 {
		t.Errorf("events %v, lost %v", e, r.Forgotten(gpus))
	}
}

// TestAStartingKubeletAndGonePods: while it is not known what a new kubelet has
// lost, the devices of pods that are gone are as good as any.
func TestAStartingKubeletAndGonePods(t *testing.T) {
	r := newRig(t)
	r.specs.pods["default/a"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "uid-a"}}
	r.specs.unknown = true
	a, b := asks{gpus: r.gpuIDs(0)}, asks{gpus: r.gpuIDs(1)}
	r.allocate(pod("a"), "main", a)
	r.allocate(pod("b"), "main", b)
	r.start(a)
	r.start(b)
	r.Registered()
	if got := slices.Sorted(maps.Keys(r.Forgotten(gpus))); len(got) != 2 {
		t.Errorf("in use %v, want those of both: the API server has not shown all pods yet", got)
	}
	r.specs.unknown = false
	if got := slices.Sorted(maps.Keys(r.Forgotten(gpus))); !slices.Equal(got, a[gpus]) {
		t.Errorf("in use %v, want those of the pod that is there: %v", got, a[gpus])
	}
}
