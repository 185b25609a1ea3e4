//go:build e2e && linux

package devices

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
)

// TestGPULostWhileAllocated: its pod runs on, and its status names the device
// is unhealthy.
func TestGPULostWhileAllocated(t *testing.T) {
	r := dgx(t)
	r.waitAllocatable(t, gpuResource, 8)
	before := r.run(t, r.pod("holder", box{gpus: 2, hcas: 2}))
	s := r.has(t, "holder", "app", 2, 2)
	whole := r.machine(t)
	t.Cleanup(func() { _ = r.writeMachine(whole) })
	m := r.machine(t)
	m.GPUs = slices.DeleteFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == s.GPUs[0] })
	if err := r.writeMachine(m); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, gpuResource, 7)
	r.waitHealth(t, "holder", map[string]string{s.GPUs[0]: "Unhealthy", s.GPUs[1]: "Healthy"})
	if err := r.writeMachine(whole); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, gpuResource, 8)
	r.waitHealth(t, "holder", map[string]string{s.GPUs[0]: "Healthy", s.GPUs[1]: "Healthy"})
	after := r.getPod(t, "holder")
	if a, b := status(before, "app"), status(after, "app"); a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("the pod was touched: %+v", b)
	}
}

// waitHealth waits until a pod's status shows this for its container's GPUs.
func (r *rig) waitHealth(t *testing.T, pod string, want map[string]string) {
	t.Helper()
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		got := map[string]string{}
		for _, s := range status(p, "app").AllocatedResourcesStatus {
			if s.Name == gpuResource {
				for _, d := range s.Resources {
					got[string(d.ResourceID)] = string(d.Health)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return "allocatedResourcesStatus (-want +got):\n" + diff
		}
		return ""
	})
}
