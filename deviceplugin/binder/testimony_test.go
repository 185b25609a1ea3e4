package binder

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/kubelet"
)

// witnesses makes the node's pods known to the binder, as the API server's
// watch does.
func (r *rig) witnesses() {
	r.options.Known = func(p Pod) (*corev1.Pod, bool) {
		for _, pod := range r.specs {
			if p.UID == string(pod.UID) || p.UID == "" && p.Namespace == pod.Namespace && p.Name == pod.Name {
				return pod, true
			}
		}
		return nil, true
	}
	r.restart()
}

// bound writes the annotation of a pod, as its node does.
func (r *rig) bound(pod string) {
	r.tb.Helper()
	b := allocation.Bound{Version: 1, Node: "gpu-1", Containers: map[string]allocation.BoundContainer{}}
	for _, x := range r.Bindings() {
		if x.Pod == pod {
			b.Containers[x.Container] = allocation.BoundContainer{Shares: x.Shares, Policy: x.Policy, By: x.By}
		}
	}
	r.says(pod, b.String())
}

func (r *rig) says(pod, text string) {
	p := r.specs["default/"+pod].DeepCopy()
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[wellknown.SGPUBound] = text
	r.specs["default/"+pod] = p
}

// wipe is somebody who removes all that we have on the disk while we are away.
func (r *rig) wipe() {
	r.tb.Helper()
	if err := errors.Join(os.RemoveAll(r.options.StateDir), os.RemoveAll(r.options.CDIDir)); err != nil {
		r.tb.Fatal(err)
	}
	r.restart()
}

func (r *rig) driftsNow() []string {
	r.tb.Helper()
	_, drifts, err := r.Reconcile(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	var all []string
	for _, d := range drifts {
		all = append(all, d.Kind+": "+d.Message)
	}
	return all
}

// TestWipedNodeOvercommitsNothing: what running containers have is known by
// their pods' annotations alone.
func TestWipedNodeOvercommitsNothing(t *testing.T) {
	r := shareRig(t, "0")
	r.witnesses()
	want := r.tenant("a", "60/40", r.slot(0, 0))
	r.start(want)
	r.bound("a")
	before := r.Bindings()
	r.wipe()

	if err := r.bindShares(r.tenant("b", "50/10", r.slot(0, 1))); err == nil || !strings.Contains(err.Error(), "card 0: 40 % of 100 left; needs 50") {
		t.Errorf("error %v", err)
	}
	if err := r.bindShares(r.tenant("c", "40/10", r.slot(0, 2))); err != nil {
		t.Errorf("what is left cannot be had: %v", err)
	}
	cards := r.nothingOvercommitted()
	if cards[0].VCore != 100 || cards[0].Consumers != 2 {
		t.Errorf("taken: %+v", cards[0])
	}
	if got := r.Cards()[0]; got.VCore != 100 || got.Consumers != 2 {
		t.Errorf("taken, without asking the kubelet: %+v", got)
	}
	got := slices.DeleteFunc(r.Bindings(), func(b Binding) bool { return b.Pod != "a" })
	before[0].Unrecorded = true
	if diff := cmp.Diff(before, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Binding{}, "CDINames")); diff != "" {
		t.Errorf("binding (-before +now):\n%s", diff)
	}
	held, err := r.Held(t.Context())
	if err != nil || !slices.ContainsFunc(held, func(h Held) bool { return h.ID == r.cards(0)[0]+slotMark && h.Pod == "default/a" }) {
		t.Errorf("its card is not held: %+v, error %v", held, err)
	}

	// It starts again, and there is a record again.
	r.start(want)
	for _, b := range r.Bindings() {
		if b.Unrecorded {
			t.Errorf("after its next start: %+v", b)
		}
	}
	r.nothingOvercommitted()
}

// TestTestimonyIsToldOnce, and ends with its pod.
func TestTestimonyIsToldOnce(t *testing.T) {
	r := shareRig(t, "0")
	r.witnesses()
	r.start(r.tenant("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	r.wipe()
	const told = "unrecorded: the record and the CDI spec of container main of default/a were lost; " +
		"its pod's annotation says which cards it has, and nobody else gets them"
	if diff := cmp.Diff([]string{told}, r.driftsNow()); diff != "" {
		t.Errorf("drifts (-want +got):\n%s", diff)
	}
	// Whoever changes the annotation now frees nothing.
	delete(r.specs["default/a"].Annotations, wellknown.SGPUBound)
	r.pass(goneFor + time.Second)
	if got := r.driftsNow(); got != nil {
		t.Errorf("told again: %q", got)
	}
	late := r.tenant("b", "60/4", r.slot(0, 1))
	if err := r.bindShares(late); err == nil {
		t.Error("another pod has the card")
	}
	r.kubelet.Delete("default", "a")
	if err := r.bindShares(late); err != nil {
		t.Errorf("the pod has gone, and its card is not free: %v", err)
	}
	if got := r.Bindings(); len(got) != 1 || got[0].Pod != "b" {
		t.Errorf("bindings %+v", got)
	}
}

// TestSiblingsKeepRunning: one container of a pod starts again, and the others
// run on where they are.
func TestSiblingsKeepRunning(t *testing.T) {
	r := shareRig(t, "0", "1")
	r.witnesses()
	r.wants("p", nil, sharer("one", "60/10"), sharer("two", "60/10"))
	one, two := asks{slots: {r.slot(0, 0)}}, asks{slots: {r.slot(1, 0)}}
	r.allocate(pod("p"), "one", one)
	r.allocate(pod("p"), "two", two)
	r.start(one)
	r.start(two)
	r.bound("p")
	before := [][]int{r.cardsOf("p", "one"), r.cardsOf("p", "two")}
	r.wipe()
	r.start(one)
	if diff := cmp.Diff(before, [][]int{r.cardsOf("p", "one"), r.cardsOf("p", "two")}); diff != "" {
		t.Errorf("cards (-before +after):\n%s", diff)
	}
	for _, b := range r.Bindings() {
		if b.Unrecorded != (b.Container == "two") {
			t.Errorf("binding %+v", b)
		}
	}
	if err := r.bindShares(r.tenant("thief", "50/10", r.slot(1, 1))); err == nil {
		t.Error("another pod has what container two has")
	}
	r.start(two)
	r.nothingOvercommitted()
}

// TestNobodyStartsWhilePodsAreUnknown: until the API server has told of a
// container whose record is lost, its card may be any.
func TestNobodyStartsWhilePodsAreUnknown(t *testing.T) {
	r := shareRig(t, "0")
	r.witnesses()
	r.start(r.tenant("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	known := r.options.Known
	r.options.Known = func(Pod) (*corev1.Pod, bool) { return nil, false }
	r.wipe()
	late := r.tenant("b", "60/4", r.slot(0, 1))
	const want = "the record of container main of default/a was lost, and it is not known yet which cards it has"
	if err := r.bindShares(late); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v", err)
	}
	if got := r.Refused(); len(got) > 0 {
		t.Errorf("it is refused as if that were for good: %+v", got)
	}
	if !r.Blind() {
		t.Error("it is taken for known who has shares")
	}
	r.Binder.options.Known = known
	if err := r.bindShares(late); err == nil || !strings.Contains(err.Error(), "40 % of 100 left") {
		t.Errorf("error %v", err)
	}
	if r.Blind() {
		t.Error("it is taken for unknown who has shares")
	}
	r.kubelet.Delete("default", "a")
	r.pass(goneFor + time.Second)
	if err := r.bindShares(late); err != nil {
		t.Error(err)
	}
}

// TestTestimonyWithoutCheckpoint: PodResources alone tells who holds tickets.
func TestTestimonyWithoutCheckpoint(t *testing.T) {
	r := shareRig(t, "0")
	r.witnesses()
	r.start(r.tenant("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	late := r.tenant("b", "60/4", r.slot(0, 1))
	r.wipe()
	if err := os.WriteFile(r.options.Checkpoint, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Name(slots, late[slots]); err != nil {
		t.Fatal(err)
	}
	if err := r.bindShares(late); err == nil || !strings.Contains(err.Error(), "40 % of 100 left") {
		t.Errorf("error %v", err)
	}
	if !r.Blind() {
		t.Error("it is taken for known who has shares")
	}
}

// TestTestimonyOfAnInitContainer, which only the checkpoint has.
func TestTestimonyOfAnInitContainer(t *testing.T) {
	r := shareRig(t, "0")
	r.witnesses()
	p := r.wants("p", nil, corev1.Container{Name: "main"})
	p.Spec.InitContainers = []corev1.Container{sharer("init", "60/10")}
	want := asks{slots: {r.slot(0, 0)}}
	r.allocate(pod("p", kubelet.Container{Name: "init", Kind: kubelet.Init}), "init", want)
	r.start(want)
	r.bound("p")
	r.wipe()
	if err := r.bindShares(r.tenant("b", "60/4", r.slot(0, 1))); err == nil || !strings.Contains(err.Error(), "40 % of 100 left") {
		t.Errorf("error %v", err)
	}
	// What it has is free again for what follows it in its own pod.
	if got := r.Bindings(); len(got) != 1 || !got[0].Unrecorded || got[0].Container != "init" {
		t.Errorf("bindings %+v", got)
	}
}
