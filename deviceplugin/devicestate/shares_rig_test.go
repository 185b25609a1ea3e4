package devicestate

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

const slots = "nvidia.com/sgpu"

// shareRig is a node whose GPUs are shared, or some of them.
func shareRig(tb testing.TB, refs ...config.GPURef) *rig {
	tb.Helper()
	r := newRig(tb, func(c *config.NodeConfig) { c.Mode, c.SGPU.GPUs = config.ModeSGPU, refs })
	r.options.NodeName = "gpu-1"
	r.change = func(inv *inventory.Inventory) {
		for i := range inv.Machine.GPUs {
			g := inv.GPUs[inv.Machine.GPUs[i].UUID]
			g.CDIEdits = &specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{
				{Path: "/dev/nvidia" + fmt.Sprint(i), HostPath: "/dev/null", Type: "c", Permissions: "rw"},
			}}
			inv.GPUs[inv.Machine.GPUs[i].UUID] = g
		}
	}
	r.restart()
	return r
}

// slot is the device ID of a share that names a GPU.
func (r *rig) slot(gpu, number int) string { return inventory.ReplicaID(r.gpuIDs(gpu)[0], number) }

// wants makes a pod known that asks for shares.
func (r *rig) wants(name string, annotations map[string]string, containers ...corev1.Container) *corev1.Pod {
	r.spec(name, containers...)
	p := r.specs.pods["default/"+name]
	p.Annotations = annotations
	return p
}

// consumer is a pod with one container: it is known, and has its device ID.
func (r *rig) consumer(name, text, id string) asks {
	r.tb.Helper()
	r.wants(name, nil, inventorytest.Sharer("main", text))
	want := asks{slots: {id}}
	r.allocate(pod(name), "main", want)
	return want
}

// bindShares is PreStartContainer.
func (r *rig) prepareShares(want asks) error { return r.Prepare(r.tb.Context(), slots, want[slots]) }

// gpusOf returns the GPUs of a pod's container main by index, as its Binding has them.
func (r *rig) gpusOf(pod string) []int {
	r.tb.Helper()
	var indices []int
	for _, b := range r.View().Allocations() {
		if b.Pod != pod || b.Container != "main" {
			continue
		}
		for _, s := range b.Shares {
			at := slices.IndexFunc(r.machine.GPUs, func(g machine.GPU) bool { return g.UUID == s.UUID })
			indices = append(indices, r.machine.GPUs[at].Index)
		}
	}
	slices.Sort(indices)
	return indices
}

// chosen is heddle-scheduler's annotation: container, GPU, share.
func (r *rig) chosen(node string, shares map[string][]allocation.Share) map[string]string {
	return map[string]string{wellknown.SGPUAllocation: text(node, shares)}
}

func text(node string, shares map[string][]allocation.Share) string {
	a := allocation.Allocation{Version: allocation.Version, Node: node, Containers: shares}
	return a.String()
}

// nothingOvercommitted fails the test if a GPU is.
func (r *rig) nothingOvercommitted() []quota.GPU {
	r.tb.Helper()
	usage, err := r.Reconcile(context.WithoutCancel(r.tb.Context()))
	if err != nil {
		r.tb.Fatal(err)
	}
	for _, d := range usage.Drifts {
		if d.Kind == DriftOvercommit {
			r.tb.Errorf("%s", d.Message)
		}
	}
	// Counted once more, and not by the code under test.
	vcore, memory := map[string]int{}, map[string]int64{}
	for _, b := range r.View().Allocations() {
		for _, s := range b.Shares {
			vcore[s.UUID] += s.VCore
			memory[s.UUID] += s.MemoryMiB
		}
	}
	for _, g := range r.machine.GPUs {
		if vcore[g.UUID] > 100 || memory[g.UUID] > g.MemoryMiB {
			r.tb.Errorf("GPU %d: %d %% and %d MiB are given out", g.Index, vcore[g.UUID], memory[g.UUID])
		}
	}
	return usage.GPUs
}
