package binder

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
)

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
