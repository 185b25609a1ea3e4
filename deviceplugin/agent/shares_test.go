package agent

import (
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

// sharer is a rig with shared GPUs.
func sharer(t *testing.T, settings string) (*rig, *api) {
	t.Helper()
	r := newRig(t, "dgx-h100", func(o *Options) { o.Generator = anyNodes{} })
	r.configure("mode: sgpu\nsgpu: {" + settings + "}\n")
	return r, r.api
}

// consumer is a pod of one container that asks for "vcore/GiB", as the scheduler
// bound it and the kubelet admitted it.
func (r *rig) consumer(name, ask string, annotations map[string]string) error {
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
	deadline := time.After(2 * time.Minute)
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

func TestSharesArePublishedForSchedulers(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	r.list("nvidia.com/vcore", 200, 0)
	r.list("nvidia.com/vmemory", 2*79, 0)
	// A GPU is healthy once the driver's CDI spec has it.
	until(t, "the Node's annotation", func() bool {
		shared := c.sharedGPUs(t)
		return len(shared) == 2 && shared[0].Healthy && shared[1].Healthy
	})
	if g := c.sharedGPUs(t)[1]; g.UUID != r.source.get().GPUs[1].UUID || !g.Healthy || g.Slots != 16 || g.Taken.Slots != 0 {
		t.Errorf("GPU 1: %+v", g)
	}
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod's annotation", func() bool { return len(c.boundOf("a")) == 1 })
	until(t, "what is taken", func() bool { return c.sharedGPUs(t)[0].Taken.VCore+c.sharedGPUs(t)[1].Taken.VCore == 60 })
	b, err := allocation.ParseBound(c.boundOf("a")[0])
	if err != nil {
		t.Fatal(err)
	}
	uuid := r.report().Bindings[0].Shares[0].UUID
	want := &allocation.Bound{Version: 1, Node: node, Containers: map[string]allocation.Sharing{"main": {
		Shares: []allocation.Share{{UUID: uuid, VCore: 60, MemoryMiB: 4096}}, Policy: "fixed-share", By: allocation.ByNode,
	}}}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	// The agent corrects an annotation that another client has changed, and makes an Event.
	r.api.EditPod("a", func(p *corev1.Pod) {
		p.Annotations[wellknown.SGPUBound] = `{"version":1,"node":"gpu-9","containers":{}}`
	})
	until(t, "the annotation corrected", func() bool { return len(c.boundOf("a")) == 2 })
	if got := c.boundOf("a"); got[0] != got[1] {
		t.Errorf("annotations %q", got)
	}
	r.api.Wait(t, "an Event", func() bool { return has(r.api.notices, "SGPUDrift annotation heddle.dev/sgpu-bound of pod default/a") })
	until(t, "its count", func() bool { return r.drifts("annotation") == 1 })
	// No pod gets an unhealthy GPU, and all its slots become unhealthy at once.
	r.alter(func(m *machine.Machine) {
		m.GPUs[1].Health = machine.Health{State: machine.Lost, Reason: "fell off the bus"}
	})
	r.list("nvidia.com/vcore", 100, 100)
	until(t, "the unhealthy GPU", func() bool { return !c.sharedGPUs(t)[1].Healthy })
	// The annotation has what is freed: the kubelet's checkpoint drops it when the kubelet admits the next pod.
	r.kubelet.Delete("default", "a")
	r.api.RemovePods()
	if err := r.consumer("next", "1/1", nil); err != nil {
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
			if family.GetName() == "heddle_share_drift_total" && m.GetLabel()[0].GetValue() == kind {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// TestAnnotationOfAnEarlierAgent: an agent may end after it wrote the annotation of a container and
// before its files, and the next one give the container another GPU. That is no drift until
// the container has started; then another client wrote it.
func TestAnnotationOfAnEarlierAgent(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the annotation", func() bool { return len(c.boundOf("a")) == 1 })
	r.stop()
	for i, want := range []float64{0, 1} {
		r.api.EditPod("a", func(p *corev1.Pod) {
			b, err := allocation.ParseBound(p.Annotations[wellknown.SGPUBound])
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range r.source.get().GPUs[:2] {
				if s := b.Containers["main"].Shares; s[0].UUID != g.UUID {
					s[0].UUID = g.UUID
					break
				}
			}
			p.Annotations[wellknown.SGPUBound] = b.String()
			if want > 0 {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{
					{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
				}
			}
		})
		r.again(t)
		until(t, "the annotation corrected", func() bool { return len(c.boundOf("a")) == i+2 })
		// It is counted after it is written; an agent that ends meanwhile does not count it.
		until(t, "the count", func() bool { return r.drifts("annotation") >= want || want == 0 })
		r.stop()
		if got := max(r.drifts("annotation"), 0); got != want {
			t.Errorf("%v drifts, want %v", got, want)
		}
	}
}

// TestAnnotationOfAPodThatLeaves: a kubelet that rejects a pod after its restart knows nothing of
// it before the API server shows that. Its annotation stays until then.
func TestAnnotationOfAPodThatLeaves(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the annotation", func() bool { return len(c.boundOf("a")) == 1 })
	r.kubelet.Delete("default", "a")
	r.passed.Add(int64(time.Minute)) // As long as a kubelet may start.
	until(t, "the agent's note of that", func() bool {
		r.found.Notify()
		return len(r.state.View().Expiring()) == 1
	})
	if err := r.consumer("b", "10/1", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the other's annotation", func() bool { return len(c.boundOf("b")) == 1 })
	r.stop() // A drift is counted after what is written.
	if got := c.boundOf("a"); len(got) != 1 || r.drifts("annotation") > 0 {
		t.Errorf("annotations %q, %v drifts", got, r.drifts("annotation"))
	}
}

// TestForgedAnnotations: the agent removes a pod's own claim to be bound, and a
// pod that names a GPU that is full gets nothing.
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
	forged := allocation.Bound{Version: 1, Node: node, Containers: map[string]allocation.Sharing{
		"main": {Shares: []allocation.Share{share(100)}, Policy: "fixed-share", By: allocation.ByNode},
	}}
	p := wish("forger", map[string]string{}, map[string]string{wellknown.SGPUBound: forged.String()})
	r.api.create(p)
	until(t, "the forged annotation removed", func() bool { return slices.Equal(c.boundOf("forger"), []string{""}) })
	if err := r.consumer("a", "60/4", map[string]string{wellknown.SGPUAllocation: chosen(60)}); err != nil {
		t.Fatal(err)
	}
	err := r.consumer("b", "60/4", map[string]string{wellknown.SGPUAllocation: chosen(60)})
	if err == nil || !strings.Contains(err.Error(), "GPU 0: 40 % of 100 left; needs 60") {
		t.Errorf("error %v", err)
	}
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, "default/b SGPURejected: container main gets no GPU") })
}

// TestAPIServerThatRejectsWrites: the agent retries, and no pod waits for it.
func TestAPIServerThatRejectsWrites(t *testing.T) {
	r, c := sharer(t, "gpus: [0]")
	c.Reject = true
	r.run()
	r.list("nvidia.com/sgpu", 16, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	c.Mu.Lock()
	c.Reject = false
	c.Mu.Unlock()
	until(t, "what the API server missed", func() bool { return len(c.boundOf("a")) == 1 && len(c.sharedGPUs(t)) == 1 })
}

// TestSeveralGPUs: a container that asks for two GPUs gets two different ones.
func TestSeveralGPUs(t *testing.T) {
	r, _ := sharer(t, "")
	r.run()
	r.list("nvidia.com/sgpu", 128, 0)
	p := wish("two", map[string]string{"nvidia.com/sgpu": "2", "nvidia.com/vcore": "10", "nvidia.com/vmemory": "1"}, nil)
	r.create(p)
	held := r.admit("two", map[string]int{"nvidia.com/sgpu": 2})["nvidia.com/sgpu"]
	first, _, _ := strings.Cut(held[0], "::")
	if strings.HasPrefix(held[1], first) {
		t.Errorf("device IDs %v", held)
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
		t.Errorf("GPUs %v", got)
	}
}
