package capacity_test

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

func h100(n int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		m.GPUs = append(m.GPUs, machine.GPU{
			UUID: "GPU-" + strconv.Itoa(i), Index: i, Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559,
			Health: machine.Health{State: machine.Healthy},
		})
	}
	return m
}

func hca(name, pci, physFn string, role machine.Role, state string) machine.HCA {
	return machine.HCA{
		Name: name, PCI: pci, PhysFn: physFn, Vendor: "0x15b3", Role: role, CharDevices: machine.CharDevices{UVerbs: []string{"uverbs0"}},
		Ports: []machine.Port{{Number: 1, State: state, LinkLayer: machine.InfiniBand}},
	}
}

// TestCapacity: the file has a machine, what differs on it, and the configuration; and the resources.
func TestCapacity(t *testing.T) {
	const fabric, first, second = machine.RoleFabric, "0000:18:00.0", "0000:3f:00.0"
	machines := map[string]*machine.Machine{
		"0": {}, "1 H100": h100(1), "2 H100": h100(2), "3 H100": h100(3), "8 H100": h100(8),
		"HCAs": {HCAs: []machine.HCA{
			hca("mlx5_0", "", "", fabric, machine.PortActive), hca("mlx5_1", "", "", fabric, machine.PortActive),
			hca("mlx5_2", "", "", fabric, machine.PortDown), hca("mlx5_bond_0", "", "", machine.RoleStorage, machine.PortActive),
		}},
		"virtual functions": {HCAs: []machine.HCA{
			hca("mlx5_0", first, "", fabric, machine.PortActive), hca("mlx5_2", second, "", fabric, machine.PortInit),
			hca("mlx5_8", "0000:18:00.2", first, fabric, machine.PortDown), hca("mlx5_9", "0000:3f:00.2", second, fabric, machine.PortDown),
		}},
	}
	golden.Rows(t, "testdata/machines.txt", *update, func(text string) string {
		text, configuration, _ := strings.Cut(text, "\nconfig\n")
		base, changes, _ := strings.Cut(text, "\n")
		m := *machines[base]
		if changes != "" {
			golden.Change(t, &m, strings.Split(changes, "\n")...)
		}
		var lines []string
		for _, r := range of(t, &m, configuration) {
			lines = append(lines, fmt.Sprintf("%+v", r))
		}
		return strings.Join(lines, "\n")
	})
}

func of(t *testing.T, m *machine.Machine, text string) []capacity.Resource {
	t.Helper()
	c, err := config.Parse(map[string][]byte{config.KeyVersion: []byte("v1"), config.KeyCluster: []byte(text)}, config.Uncompiled{})
	if err != nil {
		t.Fatal(err)
	}
	return capacity.Of(m, new(c.Cluster.For(m)), host.Vendors())
}

// Under NVIDIA's name no GPU of another maker is offered, and the reason names it.
func TestOtherMakersGPU(t *testing.T) {
	m := &machine.Machine{GPUs: []machine.GPU{{
		UUID: "GPU-1", PCI: "0000:c1:00.0", Vendor: "amd.com", Health: machine.Health{State: machine.Healthy},
	}}}
	c := config.Default()
	got := capacity.Of(m, &c, host.Vendors())[0]
	want := capacity.Resource{
		Name:   "nvidia.com/gpu",
		Reason: "GPU 0000:c1:00.0: it is a GPU of amd.com, and this node serves those of nvidia.com",
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
