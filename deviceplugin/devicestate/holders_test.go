package devicestate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

// held lists the holders of device IDs as "pod ID", with a question mark where
// only the checkpoint has them.
func (r *rig) held() []string {
	r.tb.Helper()
	all, err := r.Held(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	var texts []string
	for _, h := range all {
		text := h.Pod + " " + h.ID
		if h.Unlisted {
			text += "?"
		}
		texts = append(texts, text)
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
	expect("the pod has ended, and the checkpoint has it", "pod uid-a "+a+"?")
	// The device ID names GPU 1, the scheduler has chosen GPU 2.
	want := asks{slots: {r.slot(1, 3)}}
	r.wants("b", r.chosen("gpu-1", map[string][]allocation.Share{"main": {{UUID: c, VCore: 60, MemoryMiB: 4096}}}), inventorytest.Sharer("main", "60/4"))
	r.allocate(pod("b"), "main", want)
	expect("the checkpoint is another by now; the pod does not run", "default/b "+b+"::3")
	if err := r.prepareShares(want); err != nil {
		t.Fatal(err)
	}
	if got := r.gpusOf("b", "main"); !slices.Equal(got, []int{2}) {
		t.Fatalf("bound to %v", got)
	}
	expect("it runs: both GPUs are held", "default/b "+b+"::3", "default/b "+c+"::")
	r.pass(unclaimedFor) // What the first pod was given is forgotten.
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
