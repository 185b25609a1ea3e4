package resource_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/test/machines"
)

// TestGPUsFollowTheirPresentMode: the configuration wants all shared, and one still
// is native, because a pod has it.
func TestGPUsFollowTheirPresentMode(t *testing.T) {
	n := newGPUNode(t, machines.Load(t, "dgx-h100"))
	n.config.Mode = config.ModeSGPU
	o := n.options(t, "nvidia.com/gpu")
	// The modes by index: two GPUs are still native.
	modes := map[int]inventory.GPU{
		3: {Mode: config.ModeNative, Unavailable: "moves to sgpu when ml/train ends"}, 5: {Mode: config.ModeNative},
	}
	now := func() *inventory.Inventory {
		states := map[string]inventory.GPU{}
		for i := range n.machine.GPUs {
			states[n.machine.GPUs[i].UUID] = modes[i]
		}
		return inventory.New(n.machine, &n.config, states, nil)
	}
	r := resource.NewGPUs(o, now())
	got := map[string]bool{}
	for _, d := range r.Devices() {
		got[d.ID] = d.Healthy
	}
	held, free := n.machine.GPUs[3].UUID, n.machine.GPUs[5].UUID
	if diff := cmp.Diff(map[string]bool{held: false, free: true}, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{held: modes[3].Unavailable}, r.Snapshot().Faults()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	// What is wrong with the GPU itself comes first, and holds for MIG devices.
	n.machine.GPUs[3].Health = machine.Health{State: machine.Lost, Reason: "it fell off the bus"}
	n.machine.GPUs[5].MIG = machine.MIG{Enabled: true, Devices: []machine.MIGDevice{{UUID: "MIG-5", Profile: "1g.10gb"}}}
	n.config.MIGStrategy = config.MIGMixed
	modes[5] = inventory.GPU{Mode: config.ModeNative, Unavailable: "cordoned"}
	r.Refresh(now())
	if diff := cmp.Diff(map[string]string{held: "lost: it fell off the bus"}, r.Snapshot().Faults()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}, resource.GPUNames(now())); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	o.Name = "nvidia.com/mig-1g.10gb"
	if diff := cmp.Diff(map[string]string{"MIG-5": "cordoned"}, resource.NewGPUs(o, now()).Snapshot().Faults()); diff != "" {
		t.Errorf("faults of MIG devices (-want +got):\n%s", diff)
	}
}
