package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// sharer is a rig whose cards are shared.
func sharer(t *testing.T, settings string) (*rig, *api) {
	t.Helper()
	r := newRig(t, "dgx-h100", func(o *Options) { o.Generator = anyNodes{} })
	r.configure("mode: sgpu\nsgpu: {" + settings + "}\n")
	return r, r.api
}

// tenant is a pod of one container that asks for "vcore/GiB", as the scheduler
// bound it and the kubelet admitted it.
func (r *rig) tenant(name, ask string, annotations map[string]string) error {
	r.t.Helper()
	cores, memory, _ := strings.Cut(ask, "/")
	p := wish(name, map[string]string{"nvidia.com/sgpu": "1", "nvidia.com/vcore": cores, "nvidia.com/vmemory": memory}, annotations)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "set", Controller: new(true)}}
	r.create(p)
	r.admit(name, map[string]int{"nvidia.com/sgpu": 1})
	_, err := r.kubelet.StartContainer(r.t.Context(), "default", name, "main")
	return err
}

// until waits for something that the agent does by itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("%s did not come", what)
		case <-tick.C:
		}
	}
}

func TestSchedulersAreToldOfShares(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	r.list("nvidia.com/vcore", 200, 0)
	r.list("nvidia.com/vmemory", 2*79, 0)
	// A card is well once the driver's CDI spec has it.
	until(t, "the Node's annotation", func() bool {
		cards := c.sharedGPUs(t)
		return len(cards) == 2 && cards[0].Healthy && cards[1].Healthy
	})
	if card := c.sharedGPUs(t)[1]; card.UUID != r.source.get().GPUs[1].UUID || !card.Healthy || card.Slots != 16 || card.Taken.Slots != 0 {
		t.Errorf("card 1: %+v", card)
	}
	if err := r.tenant("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod's annotation", func() bool { return len(c.boundOf("a")) == 1 })
	until(t, "what is taken", func() bool { return c.sharedGPUs(t)[0].Taken.VCore+c.sharedGPUs(t)[1].Taken.VCore == 60 })
	b, err := allocation.ParseBound(c.boundOf("a")[0])
	if err != nil {
		t.Fatal(err)
	}
	card := r.report().Bindings[0].Shares[0].UUID
	want := &allocation.Bound{Version: 1, Node: node, Containers: map[string]allocation.BoundContainer{"main": {
		Shares: []allocation.Share{{UUID: card, VCore: 60, MemoryMiB: 4096}}, Policy: "fixed-share", By: allocation.ByNode,
	}}}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	// Somebody else's word is put right, and told.
	r.api.edit("a", func(p *corev1.Pod) {
		p.Annotations[wellknown.SGPUBound] = `{"version":1,"node":"gpu-9","containers":{}}`
	})
	until(t, "the annotation put right", func() bool { return len(c.boundOf("a")) == 2 })
	if got := c.boundOf("a"); got[0] != got[1] {
		t.Errorf("annotations %q", got)
	}
	r.api.wait(t, "an Event", func() bool { return has(r.api.notices, "SGPUDrift annotation heddle.dev/sgpu-bound of pod default/a") })
	if got := r.drifts("annotation"); got != 1 {
		t.Errorf("%v drifts", got)
	}
	// A card that is ill is nobody's any more, and all its slots go at once.
	r.alter(func(m *machine.Machine) {
		m.GPUs[1].Health = machine.Health{State: machine.Lost, Reason: "fell off the bus"}
	})
	r.list("nvidia.com/vcore", 100, 100)
	until(t, "the card's trouble", func() bool { return !c.sharedGPUs(t)[1].Healthy })
	// What is freed is told: the kubelet writes it down when it admits the next.
	r.kubelet.Delete("default", "a")
	if err := r.tenant("next", "1/1", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "what is left", func() bool { return c.sharedGPUs(t)[0].Taken.VCore+c.sharedGPUs(t)[1].Taken.VCore == 1 })
}

func (r *rig) drifts(kind string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "heddle_sgpu_drift_total" && m.GetLabel()[0].GetValue() == kind {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// TestForgedAnnotations: a pod that says it is bound is not believed, and a
// pod that names a card that is full gets nothing.
func TestForgedAnnotations(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	uuid := r.source.get().GPUs[0].UUID
	share := func(cores int) allocation.Share { return allocation.Share{UUID: uuid, VCore: cores, MemoryMiB: 4096} }
	chosen := func(cores int) string {
		a := allocation.Allocation{Version: 1, Node: node, Containers: map[string][]allocation.Share{"main": {share(cores)}}}
		return a.String()
	}
	forged := allocation.Bound{Version: 1, Node: node, Containers: map[string]allocation.BoundContainer{
		"main": {Shares: []allocation.Share{share(100)}, Policy: "fixed-share", By: allocation.ByNode},
	}}
	p := wish("forger", map[string]string{}, map[string]string{wellknown.SGPUBound: forged.String()})
	r.api.create(p)
	until(t, "the forged annotation taken away", func() bool { return slices.Equal(c.boundOf("forger"), []string{""}) })
	if err := r.tenant("a", "60/4", map[string]string{wellknown.SGPUAllocation: chosen(60)}); err != nil {
		t.Fatal(err)
	}
	err := r.tenant("b", "60/4", map[string]string{wellknown.SGPUAllocation: chosen(60)})
	if err == nil || !strings.Contains(err.Error(), "GPU 0: 40 % of 100 left; needs 60") {
		t.Errorf("error %v", err)
	}
	r.api.wait(t, "the Event", func() bool { return has(r.api.warnings, "default/b SGPURefused: container main gets no GPU") })
}

// TestAnAPIServerThatRefuses is asked again, and holds up nobody.
func TestAnAPIServerThatRefuses(t *testing.T) {
	r, c := sharer(t, "gpus: [0]")
	c.refuse = true
	r.run()
	r.list("nvidia.com/sgpu", 16, 0)
	if err := r.tenant("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.refuse = false
	c.mu.Unlock()
	until(t, "what the API server missed", func() bool { return len(c.boundOf("a")) == 1 && len(c.sharedGPUs(t)) == 1 })
}

// TestTicketsNameTheCard that the container will be bound to.
func TestTicketsNameTheCard(t *testing.T) {
	r, _ := sharer(t, "")
	r.run()
	r.list("nvidia.com/sgpu", 128, 0)
	for i := range 8 {
		uuid := r.source.get().GPUs[7-i].UUID
		a := allocation.Allocation{Version: 1, Node: node, Containers: map[string][]allocation.Share{
			"main": {{UUID: uuid, VCore: 60, MemoryMiB: 4096}},
		}}
		name := fmt.Sprintf("pod-%d", i)
		if err := r.tenant(name, "60/4", map[string]string{wellknown.SGPUAllocation: a.String()}); err != nil {
			t.Fatal(err)
		}
		r.api.edit(name, func(p *corev1.Pod) { p.Status.StartTime = new(metav1.Now()) })
		held := r.kubelet.Held("uid-"+name, "main", "nvidia.com/sgpu")
		if len(held) != 1 || !strings.HasPrefix(held[0], uuid+"::") {
			t.Errorf("%s has ticket %v for card %s", name, held, uuid)
		}
	}
	// Two cards for one container are two different ones.
	p := wish("two", map[string]string{"nvidia.com/sgpu": "2", "nvidia.com/vcore": "10", "nvidia.com/vmemory": "1"}, nil)
	r.create(p)
	held := r.admit("two", map[string]int{"nvidia.com/sgpu": 2})["nvidia.com/sgpu"]
	first, _, _ := strings.Cut(held[0], "::")
	if strings.HasPrefix(held[1], first) {
		t.Errorf("tickets %v", held)
	}
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "two", "main"); err != nil {
		t.Error(err)
	}
}

// TestNativeNodesHaveNoShares, and no annotation of them.
func TestNativeNodesHaveNoShares(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	if state := r.kubelet.State("nvidia.com/sgpu"); state.Registrations != 0 {
		t.Errorf("%+v", state)
	}
	if got := r.api.sharedGPUs(t); got != nil {
		t.Errorf("cards %v", got)
	}
}
