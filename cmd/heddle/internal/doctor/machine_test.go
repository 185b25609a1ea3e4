package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
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

func TestFindings(t *testing.T) {
	port := func(m *machine.Machine) *machine.Port { return &m.HCAs[1].Ports[0] }
	for _, tt := range []struct {
		name   string
		change func(*machine.Machine)
		want   []string
	}{
		{"a sound machine", func(*machine.Machine) {}, nil},
		{"no subnet manager yet", func(m *machine.Machine) { port(m).State, port(m).SMLID = machine.PortInit, 0 }, []string{
			"problem mlx5_1: port 1 is INIT: no subnet manager has brought it up",
		}},
		{"a lost GPU for a screen", func(m *machine.Machine) {
			m.GPUs[1].Product, m.GPUs[1].Health = "NVIDIA DGX Display", machine.Health{State: machine.Lost, Reason: "lost"}
		}, []string{"note GPU 0000:02:00.0: gpus.exclude has display: no pod gets it"}},
		{"an idle virtual function", func(m *machine.Machine) {
			m.HCAs[1].PhysFn, m.HCAs[1].NodeGUID, port(m).State = m.HCAs[0].PCI, "0000:0000:0000:0000", machine.PortDown
		}, nil},
		{"a virtual function without GUIDs", func(m *machine.Machine) {
			m.HCAs[1].PhysFn, m.HCAs[1].NodeGUID = m.HCAs[0].PCI, "0000:0000:0000:0000"
		}, []string{"problem mlx5_1: is a virtual function in use with node GUID 0"}},
		{"a virtual function that is not set up", func(m *machine.Machine) {
			m.HCAs[1].PhysFn, port(m).State, port(m).SMLID = m.HCAs[0].PCI, machine.PortInit, 0
		}, []string{"problem mlx5_1: port 1 is INIT, and its physical function mlx5_0 is ACTIVE: the virtual function has no GUID, or its link state is not set"}},
		{"subnet manager gone", func(m *machine.Machine) { port(m).SMLID = 0 }, []string{
			"problem mlx5_1: port 1 is ACTIVE, but no subnet manager is known (SM LID 0)",
		}},
		{"RoCE has no subnet manager", func(m *machine.Machine) {
			port(m).SMLID, port(m).LinkLayer = 0, machine.Ethernet
		}, nil},
		{"a dead port", func(m *machine.Machine) {
			port(m).State, port(m).PhysState = machine.PortDown, "Polling"
		}, []string{"problem mlx5_1: port 1 is DOWN (Polling)"}},
		{"a dead port of storage", func(m *machine.Machine) {
			m.HCAs[1].Role = machine.RoleStorage
			port(m).State, port(m).PhysState = machine.PortDown, "Disabled"
		}, nil},
		{"a second port without a cable", func(m *machine.Machine) {
			m.HCAs[1].Ports = append(m.HCAs[1].Ports, machine.Port{Number: 2, State: machine.PortDown, PhysState: "Polling"})
		}, nil},
		{"an accelerator without a reader", func(m *machine.Machine) {
			m.PCI = append(m.PCI, machine.PCIFunction{Address: "0000:c4:00.0", Class: "0x120000", Vendor: "0x1a5e", Device: "0x74a1"})
		}, []string{"note 0000:c4:00.0: accelerators (PCI 1a5e:74a1) that heddle has no reader for: no resource has them"}},
		{"an HCA without ports", func(m *machine.Machine) { m.HCAs[1].Ports = nil }, []string{
			"problem mlx5_1: no port could be read",
		}},
		{"fewer NVLinks than the others", func(m *machine.Machine) { m.GPUs[1].NVLinks[0].Links = 17 }, []string{
			"problem GPU 1 (0000:02:00.0, GPU-b): 17 NVLinks are up, where others of its model have 18",
		}},
		{"an unhealthy GPU", func(m *machine.Machine) {
			m.GPUs[0].Health = machine.Health{State: machine.Unhealthy, Reason: "XID 79"}
		}, []string{"problem GPU 0 (0000:01:00.0, GPU-a): unhealthy: XID 79"}},
		{"GPUs and no driver", func(m *machine.Machine) {
			m.GPUs, m.Probes = nil, []machine.Probe{{Name: "nvml", State: machine.ProbeAbsent, Reason: "no library"}}
		}, []string{"problem probe nvml: the driver is missing for devices on the PCI bus (2 NVIDIA GPUs): no library"}},
		{"GPUs that belong to virtual machines", func(m *machine.Machine) {
			m.GPUs, m.Probes = nil, []machine.Probe{{Name: "nvml", State: machine.ProbeAbsent, Reason: "no library"}}
			m.PCI[0].Driver, m.PCI[1].Driver = "vfio-pci", "vfio-pci"
		}, []string{
			"note probe nvml: nothing to read: no library",
			"note 0000:01:00.0, 0000:02:00.0: bound to vfio-pci, for virtual machines: no pod gets it",
		}},
		{"a GPU that never answered", func(m *machine.Machine) {
			m.GPUs = m.GPUs[:1]
			m.Skipped = []machine.Skipped{{Name: "0000:02:00.0", Reason: "GPU: on the PCI bus and unknown to the driver"}}
		}, []string{"problem 0000:02:00.0: left out: GPU: on the PCI bus and unknown to the driver"}},
		{"a GPU that the fabric did not take", func(m *machine.Machine) {
			m.GPUs[0].NVLinks = nil
			m.GPUs[0].Fabric = &machine.Fabric{State: machine.FabricFailed, Reason: "Unknown Error"}
		}, []string{"problem GPU 0 (0000:01:00.0, GPU-a): not registered with the NVLink fabric: failed: Unknown Error. " +
			"Jobs of several GPUs fail or go over PCIe."}},
		{"a degraded fabric", func(m *machine.Machine) {
			m.GPUs[0].Fabric = &machine.Fabric{State: machine.FabricCompleted, Reason: "its bandwidth is degraded"}
		}, []string{"problem GPU 0 (0000:01:00.0, GPU-a): the NVLink fabric reports: its bandwidth is degraded"}},
		{"neither GPUs nor a driver", func(m *machine.Machine) {
			m.GPUs, m.PCI, m.Probes = nil, nil, []machine.Probe{{Name: "nvml", State: machine.ProbeAbsent, Reason: "no library"}}
		}, []string{"note probe nvml: nothing to read: no library"}},
		{"a hung driver", func(m *machine.Machine) {
			m.Probes[0] = machine.Probe{Name: "nvml", State: machine.ProbeTimeout, Reason: "no answer in 5s"}
		}, []string{"problem probe nvml: did not answer: no answer in 5s; its values are from its last good answer"}},
		{"a failed probe", func(m *machine.Machine) {
			m.Probes[0] = machine.Probe{Name: "rdma", State: machine.ProbeFailed, Reason: "permission denied"}
		}, []string{"problem probe rdma: failed: permission denied"}},
		{"something left out", func(m *machine.Machine) {
			m.Skipped = []machine.Skipped{{Name: "mlx5_7", Reason: "EIO"}}
		}, []string{"problem mlx5_7: left out: EIO"}},
		{"several left out for one reason", func(m *machine.Machine) {
			m.Skipped = []machine.Skipped{
				{Name: "0000:01:00.0", Reason: "no driver"}, {Name: "mlx5_7", Reason: "EIO"}, {Name: "0000:02:00.0", Reason: "no driver"},
			}
		}, []string{"problem 0000:01:00.0, 0000:02:00.0: left out: no driver", "problem mlx5_7: left out: EIO"}},
		{"exclusive namespaces, no rdma_cm", func(m *machine.Machine) { m.RDMA = machine.RDMA{NetnsMode: "exclusive"} }, []string{
			"problem /dev/infiniband/rdma_cm: does not exist: connections by rdma_cm fail (UCX, NVMe-oF, NCCL over RoCE)",
			"problem RDMA network namespaces: exclusive: a pod opens only an HCA that was moved into its namespace, so shared HCAs fail in pods",
		}},
		{"problems come before notes", func(m *machine.Machine) {
			m.HCAs[0].Role = machine.RoleNVSwitch
			port(m).SMLID = 0
		}, []string{
			"problem mlx5_1: port 1 is ACTIVE, but no subnet manager is known (SM LID 0)",
			"note mlx5_0: is the management function of an NVSwitch and not a network adapter, so no pod gets it",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := sound()
			tt.change(m)
			var list Findings
			list.machine(m, new(config.Default()), nil)
			all, counted := list.sorted()
			var got []string
			problems := 0
			for _, f := range all {
				got = append(got, string(f.Level)+" "+f.Subject+": "+f.Message)
				if f.Level == Problem {
					problems++
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if counted != problems {
				t.Errorf("%d problems counted, want %d", counted, problems)
			}
		})
	}
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
