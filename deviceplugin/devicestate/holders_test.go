package devicestate

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

// held lists the holders of device IDs as "pod ID".
func (r *rig) held() []string {
	r.tb.Helper()
	all, err := r.Held(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	var texts []string
	for _, h := range all {
		texts = append(texts, h.Pod+" "+h.ID)
	}
	slices.Sort(texts)
	return texts
}

func TestHeld(t *testing.T) {
	r := shareRig(t)
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(kubelet.SortIDs(want), r.held(), cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	a, b, c := r.gpuIDs(0)[0], r.gpuIDs(1)[0], r.gpuIDs(2)[0]
	expect("nothing")
	name, err := r.Allocate(gpus, []string{a})
	if err != nil {
		t.Fatal(err)
	}
	expect("Allocate has answered, and the kubelet has written nothing", "a pod that is being admitted "+a)
	r.assign(pod("a"), "main", gpus, []string{a}, name)
	expect("the kubelet has", "default/a "+a)
	r.kubelet.Delete("default", "a")
	expect("the pod has ended, and only the checkpoint has it")
	r.pass(unclaimedFor)
	// The device ID names GPU 1, the scheduler has chosen GPU 2.
	want := asks{slots: {r.slot(1, 3)}}
	r.wants("b", r.chosen("gpu-1", map[string][]allocation.Share{"main": {{UUID: c, VCore: 60, MemoryMiB: 4096}}}), inventorytest.Sharer("main", "60/4"))
	r.allocate(pod("b"), "main", want)
	expect("the checkpoint is another by now; the pod does not run", "default/b "+b+"::3")
	if err := r.prepareShares(want); err != nil {
		t.Fatal(err)
	}
	if got := r.gpusOf("b"); !slices.Equal(got, []int{2}) {
		t.Fatalf("bound to %v", got)
	}
	expect("it runs: both GPUs are held", "default/b "+b+"::3", "default/b "+c+"::")
	r.restart()
	expect("the same after a restart", "default/b "+b+"::3", "default/b "+c+"::")
	r.kubelet.Stop()
	r.kubelet.Wipe()
	r.kubelet.Up()
	r.Registered()
	expect("a kubelet without its checkpoint starts, and its pods are not known yet", "default/b "+b+"::3", "default/b "+c+"::")
	r.kubelet.Disturb(func(context.Context, string) error { return errors.New("no answer") })
	if held, err := r.Held(t.Context()); err == nil || held != nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("a kubelet that does not answer: %v, %v", held, err)
	}
}

// A name that no container got is let go by a clock that was set back by hours, too.
func TestANameOfATimeToCome(t *testing.T) {
	r := shareRig(t)
	if _, err := r.Allocate(gpus, r.gpuIDs(0)); err != nil {
		t.Fatal(err)
	}
	r.pass(-8 * time.Hour)
	if held := r.held(); len(held) != 0 {
		t.Errorf("%q", held)
	}
	r.collect()
	if len(r.entries) != 1 {
		t.Error("it is removed at once: its container may be about to start")
	}
	r.pass(goneFor)
	if r.collect(); len(r.entries) != 0 {
		t.Error("it is kept")
	}
}

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
