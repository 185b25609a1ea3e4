package agent

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
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
	// The agent corrects an annotation that another client has changed.
	r.api.EditPod("a", func(p *corev1.Pod) {
		p.Annotations[wellknown.SGPUBound] = `{"version":1,"node":"gpu-9","containers":{}}`
	})
	until(t, "the annotation corrected", func() bool { return len(c.boundOf("a")) == 2 })
	if got := c.boundOf("a"); got[0] != got[1] {
		t.Errorf("annotations %q", got)
	}
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

// TestWhatWasCountedStaysCounted: a kubelet fails the pods that name a resource
// which is withdrawn, and HAMi's pods name vcore and vmemory.
func TestWhatWasCountedStaysCounted(t *testing.T) {
	r, _ := sharer(t, "slotsPerGPU: 4")
	r.run()
	r.list(vcore, 800, 0)
	r.list(vmemory, 632, 0)
	r.configure("mode: sgpu\nsgpu: {slotsPerGPU: 2, hami: true}\n")
	r.list(slots, 16, 16)
	r.list(vcore, 800, 0)
	r.list(vmemory, 632, 0)
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
	r.stop()
	if got := c.boundOf("a"); len(got) != 1 {
		t.Errorf("annotations %q", got)
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

const (
	slots   = "nvidia.com/sgpu"
	vcore   = "nvidia.com/vcore"
	vmemory = "nvidia.com/vmemory"
)

// chooser is a Limiter that has chosen, or could not.
type chooser struct {
	choice enforce.Choice
	err    error
}

func (c chooser) Edits(context.Context, *enforce.Limit) (*specs.ContainerEdits, enforce.Enforced, error) {
	return &specs.ContainerEdits{}, c.choice.Enforced, nil
}

func (chooser) Configure(*machine.Machine, *config.NodeConfig) error { return nil }

func (chooser) Keep(func() []enforce.Limit) error { return nil }

func (chooser) Daemons() []enforce.Daemon { return nil }

func (c chooser) Choice() (enforce.Choice, error) { return c.choice, c.err }

// anyNodes makes device nodes for all GPUs, all of them the same.
type anyNodes struct{}

func (anyNodes) Generate(m *machine.Machine) (*devgpu.Edits, error) {
	out := &devgpu.Edits{}
	for i := range m.GPUs {
		out.Devices = append(out.Devices, specs.Device{Name: m.GPUs[i].UUID, ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia" + strconv.Itoa(i), HostPath: "/dev/null", Type: "c"}},
		}})
	}
	return out, nil
}

func (anyNodes) Fingerprint() string { return "" }

// The report has the consumers of a shared GPU, and the pods that get no share.
func TestReportOfShares(t *testing.T) {
	choice := enforce.Choice{
		Enforced:  enforce.Enforced{Memory: config.EnforceDMem, Compute: config.EnforceMPS},
		WhyMemory: "memory is limited by dmem", WhyCompute: "compute is limited by mps",
	}
	r := newRig(t, "dgx-h100", func(o *Options) { o.Limiter, o.Generator = chooser{choice: choice}, anyNodes{} })
	r.configure("mode: sgpu\nsgpu: {gpus: [7]}\n")
	r.run()
	r.list(slots, 16, 0)
	for name, ask := range map[string][2]string{"a": {"30", "4"}, "b": {"20", "8"}, "c": {"60", "4"}} {
		r.api.create(wish(name, map[string]string{slots: "1", vcore: ask[0], vmemory: ask[1]}, nil))
		r.admit(name, map[string]int{slots: 1})
	}
	r.start("a")
	r.start("b")
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "c", "main"); err == nil ||
		!strings.Contains(err.Error(), "50 % of 100 left; needs 60") {
		t.Fatalf("a pod for which the GPU has no room: %v", err)
	}

	got := r.Report()
	gpu := got.GPUs[7]
	want := report.GPU{Index: 7, UUID: gpu.UUID, PCI: "0000:df:00.0", Mode: "sgpu", Wanted: "sgpu", Shared: &quota.GPU{
		UUID: gpu.UUID, Index: 7, NUMA: gpu.Shared.NUMA, Zone: gpu.Shared.Zone,
		Policy: "fixed-share", VCore: 50, UsedMiB: 12 << 10, MemoryMiB: r.source.get().GPUs[7].MemoryMiB, Consumers: 2, Slots: 16,
	}}
	if diff := cmp.Diff(want, gpu); diff != "" {
		t.Errorf("shared GPU (-want +got):\n%s", diff)
	}
	for i := range got.GPUs[:7] {
		if got.GPUs[i].Shared != nil {
			t.Errorf("GPU %d is not shared, and the report has shares of it", i)
		}
	}
	for _, b := range got.Bindings {
		if len(b.Shares) != 1 || b.Shares[0].UUID != gpu.UUID || b.By != "node" || b.Enforced != choice.Enforced {
			t.Errorf("binding %+v", b)
		}
	}
	if len(got.Rejected) != 1 {
		t.Fatalf("rejected: %+v", got.Rejected)
	}
	rejected := got.Rejected[0]
	if rejected.Since.IsZero() {
		t.Error("the report lacks the time of the rejection")
	}
	rejected.Since = time.Time{}
	wantRejected := report.Rejection{
		Namespace: "default", Pod: "c", UID: uidOf("c"), Container: "main", Kind: allocate.RejectedFull,
		Reason: "none of 1 GPUs can give 60 % of compute and 4 GiB. GPU 7: 50 % of 100 left; needs 60",
	}
	if diff := cmp.Diff(wantRejected, rejected); diff != "" {
		t.Errorf("rejected (-want +got):\n%s", diff)
	}
	wantChoice := &report.Enforcers{Choice: choice}
	if diff := cmp.Diff(wantChoice, got.Enforcers); diff != "" {
		t.Errorf("enforcers (-want +got):\n%s", diff)
	}
}

// TestSharesThatNothingLimitsAreReported: the pod gets an Event, once, also over a
// restart of the agent, and its annotation has it.
func TestSharesThatNothingLimitsAreReported(t *testing.T) {
	none := enforce.Choice{Enforced: enforce.Enforced{Memory: config.EnforceNone, Compute: config.EnforceNone}}
	r := newRig(t, "dgx-h100", func(o *Options) { o.Limiter, o.Generator = chooser{choice: none}, anyNodes{} })
	r.configure("mode: sgpu\nsgpu: {gpus: [0, 1]}\n")
	r.run()
	r.list(slots, 32, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	const event = "default/a SharesNotEnforced: nothing keeps container main within its share of memory and compute, which is only counted: " +
		"the node has no enforcer for it (sgpu.enforce)"
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, event) })
	until(t, "the annotation", func() bool { // The first has the container before its limits are known.
		all := r.api.boundOf("a")
		if len(all) == 0 {
			return false
		}
		bound, err := allocation.ParseBound(all[len(all)-1])
		return err == nil && slices.Equal(bound.Containers["main"].NotEnforced, []string{"memory", "compute"})
	})
	r.again(t)
	r.list(slots, 32, 0)
	if err := r.consumer("b", "10/4", nil); err != nil {
		t.Fatal(err)
	}
	r.api.Wait(t, "the next pod's Event", func() bool { return has(r.api.warnings, "default/b SharesNotEnforced") })
	r.api.Mu.Lock()
	defer r.api.Mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(r.api.warnings), func(w string) bool { return !strings.HasPrefix(w, "default/a SharesNotEnforced") })
	if len(all) != 1 {
		t.Errorf("%d Events on one pod: %q", len(all), all)
	}
}
