package doctor

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/golden"
)

// sound is a machine without findings: two GPUs and two fabric HCAs.
func sound() *machine.Machine {
	gpu := func(uuid, pci string, index int) machine.GPU {
		return machine.GPU{
			UUID: uuid, PCI: pci, Index: index, Product: "NVIDIA H100 80GB HBM3",
			NVLinks: []machine.NVLink{{Peer: machine.PeerNVSwitch, Links: 18}},
			Fabric:  &machine.Fabric{State: machine.FabricCompleted},
			Health:  machine.Health{State: machine.Healthy},
		}
	}
	hca := func(name, pci string) machine.HCA {
		return machine.HCA{Name: name, PCI: pci, Role: machine.RoleFabric, Ports: []machine.Port{{
			Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortActive, PhysState: "LinkUp",
			RateGbps: new(400.0), Rate: "400 Gb/sec (4X NDR)", LID: 64, SMLID: 1,
		}}}
	}
	return &machine.Machine{
		Version: machine.Version, Node: "n",
		PCI: []machine.PCIFunction{
			{Address: "0000:01:00.0", Vendor: "0x10de", Class: "0x030200"},
			{Address: "0000:02:00.0", Vendor: "0x10de", Class: "0x030200"},
		},
		GPUs:   []machine.GPU{gpu("GPU-a", "0000:01:00.0", 0), gpu("GPU-b", "0000:02:00.0", 1)},
		HCAs:   []machine.HCA{hca("mlx5_0", "0000:03:00.0"), hca("mlx5_1", "0000:04:00.0")},
		RDMA:   machine.RDMA{NetnsMode: "shared", RDMACM: true},
		Probes: []machine.Probe{{Name: "nvml", State: machine.ProbeOK}},
	}
}

// TestFindings: the file has what differs from a sound machine, and the findings.
func TestFindings(t *testing.T) {
	golden.Rows(t, "testdata/machines.txt", *update, func(differs string) string {
		m := sound()
		if differs != "" {
			golden.Change(t, m, strings.Split(differs, "\n")...)
		}
		var list Findings
		list.machine(m, new(config.Default()), nil)
		all, counted := list.sorted()
		var got []string
		for _, f := range all {
			got = append(got, string(f.Level)+" "+f.Subject+": "+f.Message)
		}
		if problems := strings.Count("\n"+strings.Join(got, "\n"), "\n"+string(Problem)); counted != problems {
			t.Errorf("%d problems counted, want %d", counted, problems)
		}
		return strings.Join(got, "\n")
	})
}

func TestRemedyOfAGPUThatNeverAnswered(t *testing.T) {
	m := sound()
	m.GPUs = m.GPUs[:1]
	m.Skipped = []machine.Skipped{{Name: "0000:02:00.0", Reason: "GPU: on the PCI bus and unknown to the driver"}}
	var list Findings
	list.machine(m, new(config.Default()), nil)
	if all, _ := list.sorted(); len(all) != 1 || !strings.Contains(all[0].Remedy, "Drain the node, then reset the GPU") {
		t.Errorf("%+v", all)
	}
}
