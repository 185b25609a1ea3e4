package host

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// hca is an HCA of a ConnectX device number, with one active port.
func hca(name, device, layer string, gbps float64) machine.HCA {
	return machine.HCA{
		Name: name, PCI: "", Vendor: sysfs.VendorMellanox, Device: device,
		Ports: ports(layer, gbps),
	}
}

func ports(layer string, gbps float64) []machine.Port {
	return []machine.Port{{Number: 1, LinkLayer: layer, State: machine.PortActive, RateGbps: &gbps}}
}

func down(h machine.HCA) machine.HCA {
	h.Ports[0].State, h.Ports[0].RateGbps = machine.PortDown, new(10.0)
	return h
}

func numbered(pattern string, first, last int, device, layer string, gbps float64) []machine.HCA {
	var list []machine.HCA
	for n := first; n <= last; n++ {
		list = append(list, hca(fmt.Sprintf(pattern, n), device, layer, gbps))
	}
	return list
}

func all(lists ...[]machine.HCA) (m machine.Machine) {
	for _, list := range lists {
		m.HCAs = append(m.HCAs, list...)
	}
	return m
}

func TestRoles(t *testing.T) {
	const ib, eth = machine.InfiniBand, machine.Ethernet
	const cx6lx, cx6, cx6dx, cx7, cx8, bf3 = "0x101f", "0x101b", "0x101d", "0x1021", "0x1023", "0xa2dc"
	for _, tt := range []struct {
		name    string
		machine machine.Machine
		// want is the role of HCAs that are not fabric.
		want map[string]machine.Role
	}{
		{
			name: "GB300: 800 Gb/s InfiniBand, 400 Gb/s RoCE",
			machine: all([]machine.HCA{
				hca("ibP16p3s0", cx8, ib, 800), hca("ibP18p3s0", cx8, ib, 800), hca("ibP2p3s0", cx8, ib, 800),
				hca("ibp3s0", cx8, ib, 800), hca("roceP22p1s0f0", bf3, eth, 400),
			}),
			want: map[string]machine.Role{"roceP22p1s0f0": machine.RoleStorage},
		},
		{
			name:    "all ports down: the model distinguishes the fabric from slower InfiniBand",
			machine: all([]machine.HCA{down(hca("mlx5_0", cx7, ib, 0)), down(hca("mlx5_1", cx7, ib, 0)), hca("mlx5_2", cx6, ib, 200)}),
			want:    map[string]machine.Role{"mlx5_2": machine.RoleStorage},
		},
		{
			name:    "one port down among its like",
			machine: all(numbered("mlx5_%d", 0, 3, cx7, ib, 400), []machine.HCA{down(hca("mlx5_4", cx7, ib, 0))}),
			want:    map[string]machine.Role{},
		},
		{
			name:    "one link degraded to half",
			machine: all(numbered("mlx5_%d", 0, 3, cx7, ib, 400), numbered("mlx5_%d", 4, 4, cx7, ib, 200)),
			want:    map[string]machine.Role{},
		},
		{
			name:    "slow Ethernet beside InfiniBand is for operators",
			machine: all(numbered("mlx5_%d", 0, 3, cx7, ib, 400), numbered("mlx5_%d", 4, 4, cx6lx, eth, 25)),
			want:    map[string]machine.Role{"mlx5_4": machine.RoleManagement},
		},
		{
			name: "RoCE: the fastest group is the fabric",
			machine: all(numbered("mlx5_%d", 0, 7, cx7, eth, 400), numbered("mlx5_%d", 8, 9, cx6, eth, 100),
				numbered("mlx5_%d", 10, 10, cx6lx, eth, 25), []machine.HCA{hca("mlx5_bond_0", bf3, eth, 400)}),
			want: map[string]machine.Role{
				"mlx5_8": machine.RoleStorage, "mlx5_9": machine.RoleStorage, "mlx5_10": machine.RoleManagement,
				"mlx5_bond_0": machine.RoleStorage,
			},
		},
		{
			name:    "RoCE over bonds only: the bonds are the fabric",
			machine: all(numbered("mlx5_bond_%d", 0, 7, cx7, eth, 400)),
			want:    map[string]machine.Role{},
		},
		{
			name:    "25 Gb/s is all there is: no fabric",
			machine: all(numbered("mlx5_%d", 0, 1, cx6lx, eth, 25)),
			want:    map[string]machine.Role{"mlx5_0": machine.RoleManagement, "mlx5_1": machine.RoleManagement},
		},
		{
			name:    "the same with its cables out",
			machine: all([]machine.HCA{down(hca("mlx5_0", cx6lx, eth, 0)), down(hca("mlx5_1", cx6lx, eth, 0))}),
			want:    map[string]machine.Role{"mlx5_0": machine.RoleManagement, "mlx5_1": machine.RoleManagement},
		},
		{
			name:    "a bond of 25 Gb/s is no better",
			machine: all([]machine.HCA{hca("mlx5_bond_0", cx6lx, eth, 25)}),
			want:    map[string]machine.Role{"mlx5_bond_0": machine.RoleManagement},
		},
		{
			name:    "100 Gb/s is a fabric, with GPUs or without",
			machine: all(numbered("mlx5_%d", 0, 1, cx6dx, eth, 100)),
			want:    map[string]machine.Role{},
		},
		{
			name:    "InfiniBand is a fabric at any speed",
			machine: all(numbered("mlx4_%d", 0, 0, "0x1003", ib, 20)),
			want:    map[string]machine.Role{},
		},
		{
			name: "ConnectX-8's second plane has no verbs",
			machine: all([]machine.HCA{
				{Name: "mlx5_0", PCI: "0000:03:00.0", CharDevices: machine.CharDevices{UVerbs: []string{"uverbs0"}}, Ports: ports(ib, 800)},
				{Name: "smi1", PCI: "0000:03:00.0", Ports: ports(ib, 800)},
			}),
			want: map[string]machine.Role{"smi1": machine.RoleManagement},
		},
		{
			name: "soft RDMA",
			machine: all(numbered("mlx5_%d", 0, 1, cx6, eth, 100), []machine.HCA{{
				Name: "rxe0", Virtual: true, Ports: []machine.Port{{LinkLayer: eth, RateGbps: new(2.5)}},
			}}),
			want: map[string]machine.Role{"rxe0": machine.RoleVirtual},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			(&memory{}).assign(&tt.machine, nil, Vendors())
			got := rolesOf(&tt.machine)
			for name, role := range got {
				if role == machine.RoleFabric {
					delete(got, name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("not fabric (-want +got):\n%s", diff)
			}
		})
	}
}

// The machine files state roles as facts; a scan of such a machine must come to
// the same ones.
func TestRolesOfTheMachineFiles(t *testing.T) {
	for _, name := range machines.Names(t) {
		t.Run(name, func(t *testing.T) {
			m := machines.Load(t, name)
			want := rolesOf(m)
			vpd := map[string]sysfs.VPD{} // Vital product data are not in the file.
			for i := range m.HCAs {
				h := &m.HCAs[i]
				vpd[h.PCI] = sysfs.VPD{SwitchManagement: h.Role == machine.RoleNVSwitch}
				h.Role = ""
			}
			(&memory{}).assign(m, vpd, Vendors())
			if diff := cmp.Diff(want, rolesOf(m)); diff != "" {
				t.Errorf("(-file +assigned):\n%s", diff)
			}
		})
	}
}

// HGX B200: mlx5_8 to mlx5_11 are functions of the NVSwitches, as their vital
// product data shows, although they are InfiniBand and fast.
func TestNVSwitchFunctions(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	tree.Remove("sys/class/infiniband/mlx5_8")
	tree.Remove("sys/class/infiniband_verbs/uverbs8")
	for n := 8; n < 12; n++ {
		dir := tree.PCI(sysfstest.Function{
			Path: fmt.Sprintf("pci0000:ff/0000:ff:%02x.0", n), Class: "0x020700", Vendor: "0x15b3", Device: "0x1021", Driver: "mlx5_core",
		})
		tree.InfiniBand(dir, n)
		tree.Raw(dir+"/vpd", "\x90\x13\x00VA\x10MLX:SMDL=SW_MNG\x00\x78")
	}
	want := roles(0, 8)
	for n := 8; n < 12; n++ {
		want[fmt.Sprintf("mlx5_%d", n)] = machine.RoleNVSwitch
	}
	if diff := cmp.Diff(want, rolesOf(at(tree, &gpus{count: 8}).Scan(t.Context()))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A DGX's storage HCAs can be of the fabric's model and kind; they share a
// PCIe switch with no GPU. One that is lost makes no storage of the others.
func TestStorageOfTheSameModel(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	dir := tree.PCI(sysfstest.Function{
		Path: "pci0000:ff/0000:ff:01.0/0000:fe:00.0", Class: "0x020700", Vendor: "0x15b3", Device: "0x1021", Driver: "mlx5_core",
	})
	tree.InfiniBand(dir, 9)
	h := at(tree, &gpus{count: 8})
	if diff := cmp.Diff(roles(0, 8, "mlx5_8", "mlx5_9"), rolesOf(h.Scan(t.Context()))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tree.Remove("sys/class/infiniband/mlx5_0")
	if diff := cmp.Diff(roles(1, 8, "mlx5_8", "mlx5_9"), rolesOf(h.Scan(t.Context()))); diff != "" {
		t.Errorf("mlx5_0 is gone (-want +got):\n%s", diff)
	}
}

// ConnectX-8 with Data Direct: the NIC hangs under the CPU, its DMA function
// beside the GPU, and only the V3 field joins them.
func TestDataDirect(t *testing.T) {
	tree := sysfstest.New(t)
	vpd := func(v3 byte) string { return "\x90\x07\x00V3\x04uid" + string(v3) + "\x78" }
	for n, v3 := range []byte{'a', 'b'} {
		dir := tree.PCI(sysfstest.Function{
			Path: fmt.Sprintf("pci000%d:00/000%d:00:00.0/000%d:03:00.0", n, n, n), Class: "0x020700",
			Vendor: "0x15b3", Device: "0x1023", Driver: "mlx5_core",
		})
		tree.InfiniBand(dir, n)
		tree.Raw(dir+"/vpd", vpd(v3))
		dma := tree.PCI(sysfstest.Function{
			Path: fmt.Sprintf("pci000%d:00/000%d:00:00.0/000%d:05:00.0", 8-n, 8-n, 8-n), Class: "0x080100",
			Vendor: "0x15b3", Device: "0x2100",
		})
		tree.Raw(dma+"/vpd", vpd(v3))
	}
	m := at(tree, &gpus{}).Scan(t.Context())
	got := map[string]string{}
	for _, h := range m.HCAs {
		got[h.PCI] = h.DataDirect
	}
	want := map[string]string{"0000:03:00.0": "0008:05:00.0", "0001:03:00.0": "0007:05:00.0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%v", diff, m.Skipped)
	}
}

func TestVirtualFunction(t *testing.T) {
	tree := sysfstest.New(t)
	pf := sysfstest.Function{Path: "pci0000:00/0000:3b:00.0", Class: "0x020700", Vendor: "0x15b3", Device: "0x1021", Driver: "mlx5_core"}
	tree.InfiniBand(tree.PCI(pf), 0)
	pf.PhysFn, pf.Path, pf.Device = pf.Path, "pci0000:00/0000:3b:00.1", "0x101e"
	tree.InfiniBand(tree.PCI(pf), 1)
	m := at(tree, &gpus{}).Scan(t.Context())
	if m.HCAs[0].PhysFn != "" || m.HCAs[1].PhysFn != "0000:3b:00.0" || m.Function("0000:3b:00.1").PhysFn != "0000:3b:00.0" {
		t.Errorf("%+v", m.HCAs)
	}
	if diff := cmp.Diff(roles(0, 2), rolesOf(m)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
