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
	"github.com/heddle-dev/heddle/api/names"
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
	p.Annotations[names.SGPUBound] = text
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
	if cards[0].VCore != 100 || cards[0].Tenants != 2 {
		t.Errorf("taken: %+v", cards[0])
	}
	if got := r.Cards()[0]; got.VCore != 100 || got.Tenants != 2 {
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
	delete(r.specs["default/a"].Annotations, names.SGPUBound)
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

// TestAnnotationGivesNoCard: a container that starts again gets the card that
// the node chooses, also if its annotation names another one that is free.
func TestAnnotationGivesNoCard(t *testing.T) {
	r := shareRig(t, "0", "1")
	r.witnesses()
	r.start(r.tenant("other", "30/10", r.slot(0, 0)))
	want := r.tenant("a", "30/10", r.slot(0, 1))
	r.start(want) // Beside the other: binpack.
	r.bound("other")
	forged := allocation.Bound{Version: 1, Node: "gpu-1", Containers: map[string]allocation.BoundContainer{"main": {
		Shares: []allocation.Share{r.share(1, "30/10")}, Policy: "fixed-share", By: allocation.ByNode,
	}}}
	r.says("a", forged.String())
	r.wipe()
	cards := r.nothingOvercommitted()
	if cards[0].VCore != 30 || cards[1].VCore != 30 {
		t.Errorf("taken: %+v", cards)
	}
	r.start(want)
	if diff := cmp.Diff([]int{0}, r.cardsOf("a", "main")); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
	cards = r.nothingOvercommitted()
	if cards[0].VCore != 60 || cards[1].VCore != 0 {
		t.Errorf("taken after its start: %+v", cards)
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

// TestWhatIsBelieved of an annotation: which cards a container has that holds
// tickets. How much of them its limits say, and nothing else counts.
func TestWhatIsBelieved(t *testing.T) {
	const uuid0, uuid1 = "GPU-0", "GPU-1" // Stand for those of the machine.
	entry := func(node, container, shares string) string {
		return `{"version":1,"node":"` + node + `","containers":{"` + container + `":{"shares":[` + shares + `],"policy":"fixed-share","by":"node"}}}`
	}
	share := func(uuid, amounts string) string { return `{"uuid":"` + uuid + `",` + amounts + `}` }
	own := entry("gpu-1", "main", share(uuid0, `"vcore":60,"memoryMiB":4096`))
	for _, tt := range []struct {
		name, text string
		change     func(*corev1.Pod)
		// taken are the vcore of cards 0 and 1, told is what people hear.
		taken [2]int
		told  string
	}{
		{"as the node wrote it", own, nil, [2]int{60, 0}, "its pod's annotation says which cards it has"},
		{"more than it asks for", entry("gpu-1", "main", share(uuid0, `"vcore":100,"memoryMiB":81559`)), nil, [2]int{60, 0}, "says which"},
		{"less than it asks for", entry("gpu-1", "main", share(uuid0, `"vcore":1,"memoryMiB":1`)), nil, [2]int{60, 0}, "says which"},
		{"another card", entry("gpu-1", "main", share(uuid1, `"vcore":60,"memoryMiB":4096`)), nil, [2]int{0, 60}, "says which"},
		{"a card that is not there", entry("gpu-1", "main", share("GPU-9", `"vcore":60,"memoryMiB":4096`)), nil, [2]int{}, "says which"},
		{
			"two cards for one", entry("gpu-1", "main", share(uuid0, `"vcore":60,"memoryMiB":4096`)+","+share(uuid1, `"vcore":60,"memoryMiB":4096`)),
			nil,
			[2]int{60, 0},
			"nobody knows which cards it has: annotation heddle.dev/sgpu-bound names 2 cards, it asks for 1 and holds 1 tickets; those that its device IDs name",
		},
		{"of another node", entry("gpu-2", "main", share(uuid0, `"vcore":60,"memoryMiB":4096`)), nil, [2]int{60, 0}, "is of node gpu-2, and this is gpu-1"},
		{"of another container", entry("gpu-1", "side", share(uuid0, `"vcore":60,"memoryMiB":4096`)), nil, [2]int{60, 0}, "does not say"},
		{"cut off", own[:50], nil, [2]int{60, 0}, "bound shares: unexpected EOF"},
		{"none", "", nil, [2]int{60, 0}, "its pod has no annotation heddle.dev/sgpu-bound"},
		{"of a pod that has ended", own, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, [2]int{}, ""},
		{"of a later pod of that name", own, func(p *corev1.Pod) { p.UID = "another" }, [2]int{}, ""},
		{"none, and its container does not run", "", func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, [2]int{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0", "1")
			r.witnesses()
			r.start(r.tenant("a", "60/4", r.slot(0, 0)))
			p := r.specs["default/a"]
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}
			if tt.text != "" {
				r.says("a", strings.NewReplacer(uuid0, r.cards(0)[0], uuid1, r.cards(1)[0]).Replace(tt.text))
			}
			if tt.change != nil {
				tt.change(r.specs["default/a"])
			}
			r.wipe()
			cards, drifts, err := r.Reconcile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := [2]int{cards[0].VCore, cards[1].VCore}; got != tt.taken {
				t.Errorf("taken %v, want %v", got, tt.taken)
			}
			switch {
			case tt.told == "" && len(drifts) == 0:
			case tt.told == "" || len(drifts) != 1 || drifts[0].Kind != DriftUnrecorded || !strings.Contains(drifts[0].Message, tt.told):
				t.Errorf("drifts %v", drifts)
			}
			if again := r.driftsNow(); again != nil {
				t.Errorf("told again: %q", again)
			}
			// What is a guess is a problem, and nobody is told that it is so.
			sure := strings.Contains(tt.told, "says which") || tt.told == ""
			if got := r.Problems(); sure != (len(got) == 0) || !sure && !strings.Contains(got[0].Reason, tt.told) {
				t.Errorf("problems %+v", got)
			}
			if got := r.Bindings(); len(got) > 0 != strings.Contains(tt.told, "says which") {
				t.Errorf("bindings %+v", got)
			}
		})
	}
}

// TestWholeMemoryByTestimony: a share without vmemory is all of the card's,
// whatever the annotation says, and also where only the tickets name the card.
func TestWholeMemoryByTestimony(t *testing.T) {
	for name, says := range map[string]func(*rig){
		"the annotation names the card, and less": func(r *rig) {
			b := allocation.Bound{Version: 1, Node: "gpu-1", Containers: map[string]allocation.BoundContainer{"main": {
				Shares: []allocation.Share{{UUID: r.cards(0)[0], VCore: 30, MemoryMiB: 1}}, Policy: "fixed-share", By: allocation.ByNode,
			}}}
			r.says("a", b.String())
		},
		"its ticket does": func(r *rig) {
			r.specs["default/a"].Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := shareRig(t, "0")
			r.witnesses()
			r.start(r.tenant("a", "30/", r.slot(0, 0)))
			says(r)
			r.wipe()
			cards := r.nothingOvercommitted()
			if cards[0].UsedMiB != cards[0].MemoryMiB || cards[0].VCore != 30 {
				t.Errorf("taken: %+v", cards[0])
			}
			if err := r.bindShares(r.tenant("b", "30/1", r.slot(0, 1))); err == nil || !strings.Contains(err.Error(), "0 GiB of 79.6 left; needs 1") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestForgedPolicy: the tenants that are certain say what a card's policy is.
func TestForgedPolicy(t *testing.T) {
	r := shareRig(t, "0")
	r.witnesses()
	r.start(r.tenant("a", "30/4", r.slot(0, 0)))
	r.bound("a")
	r.wipe()
	r.specs["default/a"].Annotations["nvidia.com/sgpu-qos-policy"] = "best-effort"
	r.nothingOvercommitted()
	// Nobody certain is there: it is believed, and costs the card its newcomers.
	if err := r.bindShares(r.tenant("b", "30/4", r.slot(0, 1))); err == nil || !strings.Contains(err.Error(), "its tenants are best-effort") {
		t.Errorf("error %v", err)
	}

	r = shareRig(t, "0")
	r.witnesses()
	r.start(r.tenant("a", "30/4", r.slot(0, 0)))
	r.bound("a")
	r.wipe()
	r.start(r.tenant("b", "30/4", r.slot(0, 1)))
	r.Binder.testimonies[0].policy = "best-effort"
	if err := r.bindShares(r.tenant("c", "30/4", r.slot(0, 2))); err != nil {
		t.Errorf("a card of fixed-share tenants refuses another: %v", err)
	}
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
