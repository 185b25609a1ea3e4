package inventory_test

import (
	"testing"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
)

func TestSharedGPUs(t *testing.T) {
	m := machines.Load(t, "a100-pcie-pairs")
	c := config.Default()
	c.Mode, c.SGPU.GPUs = config.ModeSGPU, []config.GPURef{"1", "2", "3"}
	m.GPUs[2].Health = machine.Health{State: machine.Unhealthy, Reason: "ECC"}
	gpus := map[string]inventory.GPU{}
	for i := range m.GPUs {
		gpus[m.GPUs[i].UUID] = inventory.GPU{Mode: inventory.Wanted(&c, &m.GPUs[i])}
	}
	gpus[m.GPUs[3].UUID] = inventory.GPU{Mode: config.ModeSGPU, Unhealthy: "XID 79"}
	got := inventory.New(m, &c, gpus, nil).Shared
	if len(got) != 3 || got[0].Index != 1 || got[0].Unhealthy != "" || got[1].Unhealthy != "unhealthy: ECC" || got[2].Unhealthy != "XID 79" {
		t.Fatalf("%+v", got)
	}
	// NVLink bridges join pairs.
	if got[0].Zone == 0 || got[1].Zone != got[2].Zone || got[0].Zone == got[1].Zone {
		t.Errorf("zones %d, %d and %d", got[0].Zone, got[1].Zone, got[2].Zone)
	}
	for i := range got {
		if f := m.Function(m.GPUs[i+1].PCI); f.NUMA == nil || got[i].NUMA != *f.NUMA {
			t.Errorf("GPU %d: NUMA %d", i+1, got[i].NUMA)
		}
	}
	shared := inventorytest.Configured(machines.Load(t, "dgx-h100"), &config.NodeConfig{Mode: config.ModeSGPU}).Shared
	for _, gpu := range shared {
		if gpu.Zone != 1 {
			t.Errorf("behind switches: %+v", gpu)
		}
	}
}

// Consumers are counted by UUID: a second GPU of one would look free whatever the first one has, and
// a scheduler rejects what a node publishes with both.
func TestOneUUIDTwice(t *testing.T) {
	m := machines.Load(t, "a100-pcie-pairs")
	m.GPUs[2].UUID = m.GPUs[1].UUID
	shared := inventorytest.Configured(m, &config.NodeConfig{Mode: config.ModeSGPU}).Shared
	if _, err := allocation.ParseNodeGPUs(quota.Publish(shared).String()); err != nil || len(shared) != len(m.GPUs)-1 {
		t.Errorf("%d of %d GPUs are shared, error %v", len(shared), len(m.GPUs), err)
	}
}

func TestMIGDevicesAreHandedOutAsTheirGPU(t *testing.T) {
	m := machines.Load(t, "dgx-h100")
	m.GPUs[1].MIG = machine.MIG{Enabled: true, Devices: []machine.MIGDevice{{UUID: "MIG-1", Profile: "1g.10gb"}}}
	c := config.Default()
	state := inventory.GPU{Mode: config.ModeNative, Unhealthy: "XID 79", Unavailable: "cordoned"}
	inv := inventory.New(m, &c, map[string]inventory.GPU{m.GPUs[1].UUID: state}, nil)
	if inv.GPUs["MIG-1"] != state {
		t.Errorf("MIG device %+v", inv.GPUs["MIG-1"])
	}
}

// TestWhyNewPodsCannotGetAShare: the scan's reason comes first, then the mode's;
// a GPU that is ill while it drains is not merely draining.
func TestWhyNewPodsCannotGetAShare(t *testing.T) {
	for name, test := range map[string]struct {
		state    inventory.GPU
		scan     machine.HealthState
		want     string
		draining bool
	}{
		"draining":      {inventory.GPU{Unavailable: "moves", Draining: true}, machine.Healthy, "moves", true},
		"draining, ill": {inventory.GPU{Unavailable: "moves", Draining: true, Unhealthy: "XID 79"}, machine.Healthy, "XID 79", false},
		"lost":          {inventory.GPU{Unavailable: "moves", Draining: true}, machine.Lost, "lost", false},
		"cordoned, ill": {inventory.GPU{Unavailable: "cordoned", Unhealthy: "XID 79"}, machine.Healthy, "cordoned", false},
		"without CDI":   {inventory.GPU{CDIError: "no device node"}, machine.Healthy, "no device node", false},
	} {
		m := machines.Load(t, "dgx-h100")
		m.GPUs[0].Health = machine.Health{State: test.scan}
		c := config.Default()
		test.state.Mode = config.ModeSGPU
		got := inventory.New(m, &c, map[string]inventory.GPU{m.GPUs[0].UUID: test.state}, nil).Shared
		if len(got) != 1 || got[0].Unhealthy != test.want || got[0].Draining != test.draining {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
