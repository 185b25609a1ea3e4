package resource_test

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/state"
)

// node is everything around a resource that a test changes.
type gpuNode struct {
	mu      sync.Mutex
	machine *machine.Machine
	config  config.NodeConfig
	sick    map[string]string
	driver  *cdi.DriverSpec
	// dir is the device state's.
	dir string
}

func newGPUNode(tb testing.TB, m *machine.Machine) *gpuNode {
	tb.Helper()
	return &gpuNode{dir: tb.TempDir(), machine: m, config: config.Default(), sick: map[string]string{}, driver: cdi.NewDriverSpec("", nil, host.Vendors(), nil)}
}

func (n *gpuNode) options(tb testing.TB, name string) resource.GPUOptions {
	tb.Helper()
	return resource.GPUOptions{
		Options: resource.Options{Name: name, State: state.New(tb, n.dir, n.inventory()), Driver: n.driver},
		Vendors: host.Vendors(),
	}
}

// inventory is the node as it is now.
func (n *gpuNode) inventory() *inventory.Inventory {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.config
	states := maps.Clone(inventorytest.Configured(n.machine, &c).GPUs)
	for uuid, reason := range n.sick {
		state := states[uuid]
		state.Unhealthy = cmp.Or(reason, "unhealthy")
		states[uuid] = state
	}
	return inventory.New(n.machine, &c, states, nil)
}

// machineWith has n GPUs, two on each NUMA node, named GPU-0...
func machineWith(n int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		address := fmt.Sprintf("0000:%02x:00.0", i+1)
		m.PCI = append(m.PCI, machine.PCIFunction{Address: address, Root: address, NUMA: new(i / 2)})
		m.CPU.NUMA = append(m.CPU.NUMA, machine.NUMANode{ID: i, CPUs: "0"})
		m.GPUs = append(m.GPUs, machine.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, PCI: address, Health: machine.Health{State: machine.Healthy},
		})
	}
	return m
}

// cut gives a GPU MIG devices of a profile.
func cut(m *machine.Machine, index int, profile string, n int) *machine.Machine {
	mig := machine.MIG{Capable: true, Enabled: true}
	for i := range n {
		mig.Devices = append(mig.Devices, machine.MIGDevice{UUID: fmt.Sprintf("MIG-%d-%d", index, i), Profile: profile})
	}
	m.GPUs[index].MIG = mig
	return m
}

func parse(t *testing.T, text string) config.NodeConfig {
	t.Helper()
	loaded, err := config.Parse(map[string][]byte{"version": []byte("v1"), "cluster-config": []byte(text)}, config.Uncompiled{})
	if err != nil {
		t.Fatal(err)
	}
	return loaded.Cluster.ForVendor("nvidia.com")
}
