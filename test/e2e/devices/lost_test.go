//go:build e2e && linux

package devices

import (
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
	for _, gone := range []bool{false, true} {
		// Lost as NVML reports it, and gone from the machine altogether.
		m := r.machine(t)
		for i := range m.GPUs {
			if m.GPUs[i].UUID == s.GPUs[0] {
				m.GPUs[i].Health = machine.Health{State: machine.Lost, Reason: "memory: GPU is lost"}
				if gone {
					m.GPUs = append(m.GPUs[:i:i], m.GPUs[i+1:]...)
				}
				break
			}
		}
		if err := r.writeMachine(m); err != nil {
			t.Fatal(err)
		}
		took := r.waitAllocatable(t, gpuResource, 7)
		t.Logf("gone %t: allocatable was 7 after %.1f s", gone, took.Seconds())
		r.waitHealth(t, "holder", map[string]string{s.GPUs[0]: "Unhealthy", s.GPUs[1]: "Healthy"})
		if err := r.writeMachine(whole); err != nil {
			t.Fatal(err)
		}
		took = r.waitAllocatable(t, gpuResource, 8)
		t.Logf("gone %t: allocatable was 8 again after %.1f s", gone, took.Seconds())
		r.waitHealth(t, "holder", map[string]string{s.GPUs[0]: "Healthy", s.GPUs[1]: "Healthy"})
	}
	after := r.getPod(t, "holder")
	if a, b := status(before, "app"), status(after, "app"); a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("the pod was touched: %+v", b)
	}
	again, err := interpret(r.ask(t, "holder", "app"), r.machine(t))
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(s.GPUs, again.GPUs); diff != "" {
		t.Errorf("the pod's GPUs (-before +after):\n%s", diff)
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
