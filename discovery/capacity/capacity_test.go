package capacity_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/host"
)

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

func with(m *machine.Machine, change func(*machine.Machine)) *machine.Machine {
	change(m)
	return m
}

func TestGPUs(t *testing.T) {
	lost := machine.Health{State: machine.Lost, Reason: "XID 79"}
	cut := machine.MIG{Capable: true, Enabled: true, Devices: []machine.MIGDevice{
		{UUID: "MIG-1", Profile: "1g.10gb"}, {UUID: "MIG-2", Profile: "3g.40gb"}, {UUID: "MIG-3", Profile: "1g.10gb"},
	}}
	for _, tt := range []struct {
		name    string
		machine *machine.Machine
		config  string
		want    []capacity.Resource
	}{
		{"native", h100(8), "", []capacity.Resource{{Name: "nvidia.com/gpu", Count: 8, Devices: 8, Healthy: 8}}},
		{
			"one lost", with(h100(2), func(m *machine.Machine) { m.GPUs[1].Health = lost }), "",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Count: 1, Devices: 2, Healthy: 1, Reason: "GPU-1: lost: XID 79"}},
		},
		{
			"many lost", with(h100(8), func(m *machine.Machine) {
				for i := range m.GPUs {
					m.GPUs[i].Health = machine.Health{State: machine.Unhealthy}
				}
			}), "",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Devices: 8, Reason: "GPU-0: unhealthy; GPU-1: unhealthy; GPU-2: unhealthy; GPU-3: unhealthy; and 4 more"}},
		},
		{
			"no driver", &machine.Machine{
				PCI:    []machine.PCIFunction{{Address: "0000:18:00.0", Class: "0x030200", Vendor: "0x10de"}},
				Probes: []machine.Probe{{Name: "nvml", State: machine.ProbeAbsent, Reason: "libnvidia-ml.so.1 is not there"}},
			}, "",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Reason: "1 NVIDIA GPU on the PCI bus, but libnvidia-ml.so.1 is not there"}},
		},
		{
			"the driver hangs", &machine.Machine{
				PCI:    []machine.PCIFunction{{Address: "0000:18:00.0", Class: "0x030200", Vendor: "0x10de"}, {Class: "0x030000", Vendor: "0x10de"}},
				Probes: []machine.Probe{{Name: "nvml", State: machine.ProbeTimeout, Reason: "no answer in 5s"}},
			}, "",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Reason: "2 NVIDIA GPUs on the PCI bus, but nvml did not answer: no answer in 5s"}},
		},
		{
			"given to virtual machines", &machine.Machine{
				PCI:    []machine.PCIFunction{{Address: "0000:18:00.0", Class: "0x030200", Vendor: "0x10de", Driver: "vfio-pci"}},
				Probes: []machine.Probe{{Name: "nvml", State: machine.ProbeFailed, Reason: "No devices"}},
			}, "",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Reason: "1 NVIDIA GPU bound to vfio-pci, for virtual machines"}},
		},
		{"no GPUs", &machine.Machine{}, "", []capacity.Resource{{Name: "nvidia.com/gpu", Reason: "no GPUs"}}},
		{
			"shared", h100(8), "mode: sgpu",
			[]capacity.Resource{
				{Name: "nvidia.com/gpu", Reason: "every GPU is shared: mode is sgpu"},
				{Name: "nvidia.com/sgpu", Count: 128, Devices: 8, Healthy: 8},
				{Name: "nvidia.com/vcore", Count: 800, Devices: 8, Healthy: 8},
				{Name: "nvidia.com/vmemory", Count: 632, Devices: 8, Healthy: 8},
			},
		},
		{
			"shared, memory over-committed", h100(8), "mode: sgpu\nsgpu: {memoryOvercommit: 1.5}",
			[]capacity.Resource{
				{Name: "nvidia.com/gpu", Reason: "every GPU is shared: mode is sgpu"},
				{Name: "nvidia.com/sgpu", Count: 128, Devices: 8, Healthy: 8},
				{Name: "nvidia.com/vcore", Count: 800, Devices: 8, Healthy: 8},
				{Name: "nvidia.com/vmemory", Count: 952, Devices: 8, Healthy: 8},
			},
		},
		{
			"hybrid, with a stranger", with(h100(3), func(m *machine.Machine) { m.GPUs[0].Health = lost }), "mode: sgpu\nsgpu: {gpus: [0, GPU-1, GPU-9], slotsPerGPU: 4, advertise: sgpu}",
			[]capacity.Resource{
				{Name: "nvidia.com/gpu", Count: 1, Devices: 1, Healthy: 1},
				{Name: "nvidia.com/sgpu", Count: 4, Devices: 2, Healthy: 1, Reason: "sgpu.gpus names what this node does not have: GPU-9; GPU-0: lost: XID 79"},
				{Name: "nvidia.com/vcore", Reason: "sgpu.gpus names what this node does not have: GPU-9; sgpu.advertise is sgpu"},
				{Name: "nvidia.com/vmemory", Reason: "sgpu.gpus names what this node does not have: GPU-9; sgpu.advertise is sgpu"},
			},
		},
		{
			"shared, and nothing there", &machine.Machine{}, "mode: sgpu",
			[]capacity.Resource{
				{Name: "nvidia.com/gpu", Reason: "no GPUs"},
				{Name: "nvidia.com/sgpu", Reason: "no GPUs"},
				{Name: "nvidia.com/vcore", Reason: "no GPUs"},
				{Name: "nvidia.com/vmemory", Reason: "no GPUs"},
			},
		},
		{
			"MIG unnamed", with(h100(2), func(m *machine.Machine) { m.GPUs[0].MIG = cut }), "",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Count: 1, Devices: 2, Healthy: 1, Reason: "GPU-0: MIG is on, and migStrategy is none"}},
		},
		{
			"MIG single", with(h100(1), func(m *machine.Machine) { m.GPUs[0].MIG = cut }), "migStrategy: single",
			[]capacity.Resource{{Name: "nvidia.com/gpu", Count: 3, Devices: 3, Healthy: 3}},
		},
		{
			"MIG mixed on all", with(h100(1), func(m *machine.Machine) { m.GPUs[0].MIG = cut }), "migStrategy: mixed",
			[]capacity.Resource{
				{Name: "nvidia.com/gpu", Reason: "every GPU is shared or cut into MIG devices"},
				{Name: "nvidia.com/mig-1g.10gb", Count: 2, Devices: 2, Healthy: 2},
				{Name: "nvidia.com/mig-3g.40gb", Count: 1, Devices: 1, Healthy: 1},
			},
		},
		{
			"MIG mixed", with(h100(2), func(m *machine.Machine) {
				m.GPUs[0].MIG = cut
				m.GPUs[1].MIG = machine.MIG{Enabled: true}
			}), "migStrategy: mixed",
			[]capacity.Resource{
				{Name: "nvidia.com/gpu", Devices: 1, Reason: "GPU-1: MIG is on, and MIG devices are missing"},
				{Name: "nvidia.com/mig-1g.10gb", Count: 2, Devices: 2, Healthy: 2},
				{Name: "nvidia.com/mig-3g.40gb", Count: 1, Devices: 1, Healthy: 1},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, of(t, tt.machine, tt.config+"\nrdma: {resources: []}")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func of(t *testing.T, m *machine.Machine, text string) []capacity.Resource {
	t.Helper()
	c, err := config.Parse(map[string][]byte{config.KeyVersion: []byte("v1"), config.KeyCluster: []byte(text)}, config.Uncompiled{})
	if err != nil {
		t.Fatal(err)
	}
	return capacity.Of(m, new(c.Cluster.For(m)), host.Vendors())
}

func TestHCAs(t *testing.T) {
	hca := func(name string, role machine.Role, state string) machine.HCA {
		return machine.HCA{
			Name: name, Vendor: "0x15b3", Role: role, CharDevices: machine.CharDevices{UVerbs: []string{"uverbs0"}},
			Ports: []machine.Port{{Number: 1, State: state, LinkLayer: machine.InfiniBand}},
		}
	}
	m := &machine.Machine{HCAs: []machine.HCA{
		hca("mlx5_0", machine.RoleFabric, machine.PortActive), hca("mlx5_1", machine.RoleFabric, machine.PortActive),
		hca("mlx5_2", machine.RoleFabric, machine.PortDown), hca("mlx5_bond_0", machine.RoleStorage, machine.PortActive),
	}}
	bare := &machine.Machine{HCAs: []machine.HCA{{Name: "a", Role: machine.RoleFabric}, hca("b", machine.RoleFabric, machine.PortActive)}}
	bare.HCAs[1].CharDevices = machine.CharDevices{}
	vfs := &machine.Machine{HCAs: []machine.HCA{
		hca("mlx5_0", machine.RoleFabric, machine.PortActive), hca("mlx5_2", machine.RoleFabric, machine.PortInit),
		hca("mlx5_8", machine.RoleFabric, machine.PortDown), hca("mlx5_9", machine.RoleFabric, machine.PortDown),
	}}
	for i, pci := range []string{"0000:18:00.0", "0000:3f:00.0", "0000:18:00.2", "0000:3f:00.2"} {
		vfs.HCAs[i].PCI = pci
	}
	vfs.HCAs[2].PhysFn, vfs.HCAs[3].PhysFn = vfs.HCAs[0].PCI, vfs.HCAs[1].PCI
	moved := &machine.Machine{HCAs: slices.Clone(vfs.HCAs)}
	moved.HCAs[2].Elsewhere, moved.HCAs[2].Ports = true, nil
	const name = "rdma/hca_shared_devices_ib"
	for _, tt := range []struct {
		name    string
		machine *machine.Machine
		config  string
		want    capacity.Resource
	}{
		{"default", m, "", capacity.Resource{Name: name, Count: 128, Devices: 3, Healthy: 2, Reason: "mlx5_2: port 1 is DOWN"}},
		{"all", m, "rdma: {resources: [{name: rdma/a, count: all, sharers: 7}]}", capacity.Resource{Name: "rdma/a", Count: 7, Devices: 3, Healthy: 2, Reason: "mlx5_2: port 1 is DOWN"}},
		{"selected", m, "rdma: {resources: [{name: rdma/a, sharers: 1, selectors: {roles: [storage]}}]}", capacity.Resource{Name: "rdma/a", Count: 1, Devices: 1, Healthy: 1}},
		{"role corrected", m, "rdma: {roles: {fabric: [mlx5_bond_0], management: [mlx5_*]}}", capacity.Resource{Name: name, Count: 64, Devices: 1, Healthy: 1}},
		{"none selected", m, "rdma: {resources: [{name: rdma/a, selectors: {vendors: ['8086']}}]}", capacity.Resource{
			Name: "rdma/a", Reason: "no HCA is selected: mlx5_0: vendors: 0x15b3 is not among 8086; mlx5_1: vendors: 0x15b3 is not among 8086; " +
				"mlx5_2: vendors: 0x15b3 is not among 8086; mlx5_bond_0: vendors: 0x15b3 is not among 8086",
		}},
		{"virtual functions are as good as their physical one", vfs, "rdma: {resources: [{name: rdma/a, sharers: 1, selectors: {pfNames: [mlx5_0, mlx5_2]}}]}", capacity.Resource{
			Name: "rdma/a", Count: 1, Devices: 2, Healthy: 1, Reason: "mlx5_9: mlx5_2, its physical function: port 1 is INIT",
		}},
		{"in a pod's network", moved, "rdma: {resources: [{name: rdma/a, sharers: 1, selectors: {pfNames: [mlx5_0]}}]}", capacity.Resource{
			Name: "rdma/a", Count: 1, Devices: 1, Healthy: 1,
		}},
		{"in a pod's network, and shared", moved, "rdma: {resources: [{name: rdma/a, sharers: 2, selectors: {pfNames: [mlx5_0]}}]}", capacity.Resource{
			Name: "rdma/a", Devices: 1, Reason: "mlx5_8: it is in another network namespace",
		}},
		{"but not where pods share them", vfs, "rdma: {resources: [{name: rdma/a, sharers: 2, selectors: {pfNames: [mlx5_0]}}]}", capacity.Resource{
			Name: "rdma/a", Devices: 1, Reason: "mlx5_8: port 1 is DOWN",
		}},
		{"not usable", bare, "", capacity.Resource{Name: name, Devices: 2, Reason: "a: no port could be read; b: it has no uverbs device (module ib_uverbs)"}},
		{"no devices", &machine.Machine{}, "", capacity.Resource{Name: name, Reason: "no RDMA devices"}},
		{"no stack", &machine.Machine{Probes: []machine.Probe{{Name: "rdma", State: machine.ProbeAbsent, Reason: "no /sys/class/infiniband"}}}, "", capacity.Resource{
			Name: name, Reason: "no /sys/class/infiniband",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := of(t, tt.machine, tt.config)
			if diff := cmp.Diff(tt.want, got[len(got)-1]); diff != "" {
				t.Error(diff)
			}
		})
	}
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
