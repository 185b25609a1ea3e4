package affinity

import (
	stdcmp "cmp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/machines"
)

func numaMachine(nodes ...string) *machine.Machine {
	m := &machine.Machine{Version: machine.Version}
	for i, cpus := range nodes {
		m.CPU.NUMA = append(m.CPU.NUMA, machine.NUMANode{ID: i, CPUs: cpus})
	}
	return m
}

func function(address, root string, numa *int, upstream ...string) machine.PCIFunction {
	return machine.PCIFunction{Address: address, Root: root, NUMA: numa, Upstream: upstream}
}

func TestPathOfAGPUAndAnHCA(t *testing.T) {
	gpu := function("0000:18:00.0", "pci0000:15", new(0), "15:01.0", "16:00.0", "17:00.0")
	for _, tt := range []struct {
		name  string
		nodes []string
		gpu   machine.PCIFunction
		hca   machine.PCIFunction
		want  string
	}{
		{
			"one host bridge with NUMA unknown",
			[]string{"0", "1"},
			function("0000:18:00.0", "pci0000:15", nil, "15:01.0"),
			function("0000:20:00.0", "pci0000:15", nil, "15:02.0"), "PHB",
		},
		{
			"one switch",
			[]string{"0", "1"},
			gpu,
			function("0000:19:00.0", "pci0000:15", new(0), "15:01.0", "16:00.0", "17:01.0"), "PIX",
		},
		{
			"a switch behind a switch",
			[]string{"0", "1"},
			gpu,
			function("0000:1c:00.0", "pci0000:15", new(0), "15:01.0", "16:00.0", "17:01.0", "1a:00.0", "1b:00.0"), "PXB",
		},
		{
			"bridges of equal names under different host bridges",
			[]string{"0", "1"},
			gpu,
			function("0001:18:00.0", "pci0001:15", new(1), "15:01.0", "16:00.0", "17:00.0"), "SYS",
		},
		{
			"NUMA unknown, several nodes",
			[]string{"0", "1"},
			gpu,
			function("0000:98:00.0", "pci0000:97", nil, "97:01.0"), "unknown",
		},
		{
			"NUMA unknown, one node",
			[]string{"0-63"},
			gpu,
			function("0000:98:00.0", "pci0000:97", nil, "97:01.0"), "NODE",
		},
		{
			"NUMA unknown, a second node without processors",
			[]string{"0-71", ""},
			gpu,
			function("0000:98:00.0", "pci0000:97", nil, "97:01.0"), "NODE",
		},
		{
			"NUMA unknown, no node reported", nil,
			function("0000:18:00.0", "pci0000:15", nil, "15:01.0"),
			function("0000:98:00.0", "pci0000:97", nil, "97:01.0"), "unknown",
		},
		{
			"no ancestry at all",
			[]string{"0", "1"},
			function("0000:18:00.0", "", nil), function("0000:98:00.0", "", nil), "unknown",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := numaMachine(tt.nodes...)
			m.PCI = []machine.PCIFunction{tt.gpu, tt.hca}
			m.GPUs = []machine.GPU{{UUID: "GPU-0", PCI: tt.gpu.Address}}
			m.HCAs = []machine.HCA{{Name: "mlx5_0", PCI: tt.hca.Address, Role: machine.RoleFabric}}
			x := Of(m)
			if got, back := x.At(0, 1).String(), x.At(1, 0).String(); got != tt.want || back != tt.want {
				t.Errorf("path %s and back %s, want %s", got, back, tt.want)
			}
			if near, class := x.Nearest(0, IsFabricHCA); len(near) != 1 || near[0] != 1 || class != x.At(0, 1) {
				t.Errorf("nearest are %v, %s", near, class)
			}
		})
	}
}

func TestNVLinkOfTwoGPUs(t *testing.T) {
	direct := func(peer string, n int) machine.NVLink { return machine.NVLink{Peer: peer, Links: n} }
	const a, b, c = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
	for _, tt := range []struct {
		name   string
		first  []machine.NVLink
		second []machine.NVLink
		want   string
	}{
		{"direct", []machine.NVLink{direct(b, 12)}, []machine.NVLink{direct(a, 12)}, "NV12"},
		{"through NVSwitches", []machine.NVLink{direct("nvswitch", 18)}, []machine.NVLink{direct("nvswitch", 18)}, "NV18"},
		{
			"one has lost links to the NVSwitches",
			[]machine.NVLink{direct("nvswitch", 18)},
			[]machine.NVLink{direct("nvswitch", 17)},
			"NV17",
		},
		{"only one reaches the NVSwitches", []machine.NVLink{direct("nvswitch", 18)}, nil, "NODE"},
		{"only one end reports the link", []machine.NVLink{direct(b, 12)}, nil, "NODE"},
		{"both linked to a third", []machine.NVLink{direct(c, 4)}, []machine.NVLink{direct(c, 4)}, "NODE"},
		{"none", nil, nil, "NODE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := numaMachine("0-7")
			m.PCI = []machine.PCIFunction{function(a, "pci0000:00", new(0)), function(b, "pci0000:02", new(0))}
			m.GPUs = []machine.GPU{
				{UUID: "GPU-0", PCI: a, NVLinks: tt.first}, {UUID: "GPU-1", Index: 1, PCI: b, NVLinks: tt.second},
			}
			if got := Of(m).At(0, 1).String(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// A ConnectX-8 stands under the processor's root port, and its DMA function
// in the GPU's switch: the pair is as near as the nearer of the two.
func TestDataDirectCountsForGPUsOnly(t *testing.T) {
	m := numaMachine("0-71", "72-143")
	m.PCI = []machine.PCIFunction{
		function("0000:01:00.0", "pci0000:00", new(0), "00:01.0"),
		function("0000:41:00.0", "pci0000:40", new(0), "40:01.0", "41:00.0", "42:00.0"),
		function("0000:42:00.0", "pci0000:40", new(0), "40:01.0", "41:00.0", "42:01.0"),
		function("0000:81:00.0", "pci0000:80", new(1), "80:01.0"),
	}
	m.GPUs = []machine.GPU{{UUID: "GPU-0", PCI: "0000:41:00.0"}}
	m.HCAs = []machine.HCA{
		{Name: "mlx5_0", PCI: "0000:01:00.0", DataDirect: "0000:42:00.0", Role: machine.RoleFabric},
		{Name: "mlx5_1", PCI: "0000:81:00.0", DataDirect: "0000:ff:00.0", Role: machine.RoleFabric},
	}
	if diff := cmp.Diff([][]string{{"X", "PIX", "SYS"}, {"PIX", "X", "SYS"}, {"SYS", "SYS", "X"}}, words(Of(m))); diff != "" {
		t.Errorf("matrix (-want +got):\n%s", diff)
	}
}

func TestVirtualFunctionHangsWhereItsPhysicalOneDoes(t *testing.T) {
	m := numaMachine("0", "1")
	m.PCI = []machine.PCIFunction{
		function("0000:18:00.0", "pci0000:15", new(0), "15:01.0", "16:00.0", "17:00.0"),
		function("0000:19:00.0", "pci0000:15", new(0), "15:01.0", "16:00.0", "17:01.0"),
	}
	m.GPUs = []machine.GPU{{UUID: "GPU-0", PCI: "0000:18:00.0"}}
	m.HCAs = []machine.HCA{{Name: "mlx5_1", PCI: "0000:19:00.1", PhysFn: "0000:19:00.0", Role: machine.RoleFabric}}
	if got := Of(m).At(0, 1).String(); got != "PIX" {
		t.Errorf("virtual function is %s from the GPU, want PIX", got)
	}
}

func words(x *Matrix) [][]string {
	var all [][]string
	for i := range x.Devices {
		var row []string
		for j := range x.Devices {
			row = append(row, x.At(i, j).String())
		}
		all = append(all, row)
	}
	return all
}

func TestRailsOfMachines(t *testing.T) {
	for name, want := range map[string]map[string]int{
		"h800-8ib-bond": {
			"mlx5_103": 0, "mlx5_100": 1, "mlx5_106": 2, "mlx5_101": 3,
			"mlx5_107": 4, "mlx5_102": 5, "mlx5_105": 6, "mlx5_104": 7, "mlx5_bond_0": -1,
		},
		"soft-rdma-only": {"rxe0": -1, "siw0": -1},
	} {
		t.Run(name, func(t *testing.T) {
			m := machines.Load(t, name)
			got := map[string]int{}
			for i, rail := range Rails(m) {
				got[m.HCAs[i].Name] = rail
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rails (-want +got):\n%s", diff)
			}
		})
	}
}

// Where buses are not numbered in the order of GPUs, the rail is the GPU's.
func TestRailsFollowTheGPUs(t *testing.T) {
	m := numaMachine("0-7", "8-15")
	add := func(root string, numa int, gpu string, hcas ...string) {
		if gpu != "" {
			m.PCI = append(m.PCI, function(gpu, root, new(numa), root+":01.0", root+":02.0", root+":03.0"))
			m.GPUs = append(m.GPUs, machine.GPU{UUID: gpu, PCI: gpu})
		}
		for _, hca := range hcas {
			m.PCI = append(m.PCI, function(hca, root, new(numa), root+":01.0", root+":02.0", root+":04.0"))
			m.HCAs = append(m.HCAs, machine.HCA{Name: "mlx5_" + hca[5:7], PCI: hca, Role: machine.RoleFabric})
		}
	}
	add("pci0000:10", 0, "0000:90:00.0", "0000:11:00.0") // The second GPU is next to the first HCA.
	add("pci0000:20", 0, "0000:21:00.0", "0000:80:00.0")
	add("pci0000:a0", 1, "0000:a1:00.0", "0000:a3:00.0", "0000:a2:00.0") // Two next to one GPU: by address.
	add("pci0000:05", 1, "", "0000:05:00.0")                             // Next to no GPU in particular: the nearest by NUMA node.
	m.HCAs = append(m.HCAs,
		machine.HCA{Name: "soft0", Role: machine.RoleFabric}, // Their place is unknown.
		machine.HCA{Name: "soft1", Role: machine.RoleFabric},
		machine.HCA{Name: "bond", PCI: "0000:22:00.0", Role: machine.RoleStorage},
		machine.HCA{Name: "vf", PCI: "0000:80:00.2", PhysFn: "0000:80:00.0", Role: machine.RoleFabric})
	got := map[string]int{}
	for i, rail := range Rails(m) {
		got[m.HCAs[i].Name] = rail
	}
	want := map[string]int{
		"mlx5_80": 0, "vf": 0, "mlx5_11": 1, "mlx5_05": 2, "mlx5_a2": 3, "mlx5_a3": 4, "soft0": 5, "soft1": 6, "bond": -1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rails (-want +got):\n%s", diff)
	}
}

func TestRailOfVirtualFunctions(t *testing.T) {
	hca := func(name, pci, physfn string) machine.HCA {
		return machine.HCA{Name: name, PCI: pci, PhysFn: physfn, Role: machine.RoleFabric}
	}
	// Unsorted, and numbers in hexadecimal: 0000:0a comes before 0000:10.
	m := &machine.Machine{HCAs: []machine.HCA{
		hca("vf1", "0000:10:00.2", "0000:10:00.0"), hca("pf1", "0000:10:00.0", ""), hca("pf0", "0000:0a:00.0", ""),
		hca("passed-through vf", "0000:20:00.1", "0000:20:00.0"),
	}}
	if diff := cmp.Diff([]int{1, 1, 0, 2}, Rails(m)); diff != "" {
		t.Errorf("rails (-want +got):\n%s", diff)
	}
}

func TestCompareOrdersByCloseness(t *testing.T) {
	classes := []Class{{}, {Kind: SYS}, {Kind: NODE}, {Kind: PHB}, {Kind: PXB}, {Kind: PIX}, {Kind: NVLink, Links: 4}, {Kind: NVLink, Links: 18}, {Kind: Self}}
	for i, a := range classes {
		for j, b := range classes {
			if got, want := a.Compare(b), stdcmp.Compare(i, j); got != want {
				t.Errorf("%s compared with %s is %d, want %d", a, b, got, want)
			}
		}
	}
}

func BenchmarkMatrix(b *testing.B) {
	m := machines.Load(b, "h800-8ib-bond")
	b.ReportAllocs()
	for b.Loop() {
		Of(m)
	}
}

func FuzzMatrix(f *testing.F) {
	for _, name := range []string{"a100-pcie-pairs", "soft-rdma-only"} {
		f.Add(machines.Dump(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := machine.Decode(b)
		if err != nil || len(m.GPUs)+len(m.HCAs) > 64 {
			return
		}
		x := Of(m)
		for i := range x.Devices {
			for j := range x.Devices {
				if c := x.At(i, j); c != x.At(j, i) || (c.Kind == Self) != (i == j) {
					t.Fatalf("from %d to %d is %s, and back %s", i, j, c, x.At(j, i))
				}
			}
			x.Nearest(i, IsGPU)
		}
		if n := len(Rails(m)); n != len(m.HCAs) {
			t.Fatalf("%d rails for %d HCAs", n, len(m.HCAs))
		}
	})
}
