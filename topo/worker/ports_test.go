package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// fabricHCA is a fabric HCA with one active InfiniBand port.
func fabricHCA(name, pci string) machine.HCA {
	return machine.HCA{
		Name: name, PCI: pci, NodeGUID: "0001:" + name, Role: machine.RoleFabric,
		Ports:       []machine.Port{{Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortActive, RateGbps: new(400.0)}},
		CharDevices: machine.CharDevices{UMAD: []string{"umad0"}},
	}
}

// pairs is a machine of GPUs and HCAs in pairs under switches of their own,
// whose HCAs are named against the order of addresses.
func pairs(n int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		bridge := fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1))
		gpu, nic := fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)+2), fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)+1)
		for _, a := range []string{gpu, nic} {
			m.PCI = append(m.PCI, machine.PCIFunction{Address: a, Root: fmt.Sprint("pci", i), Upstream: []string{bridge}, NUMA: new(0)})
		}
		m.GPUs = append(m.GPUs, machine.GPU{UUID: fmt.Sprint("GPU-", i), PCI: gpu})
		m.HCAs = append(m.HCAs, fabricHCA(fmt.Sprint("mlx5_", n-i), nic))
	}
	return m
}

func without(m *machine.Machine, i int) *machine.Machine {
	m.HCAs = append(m.HCAs[:i:i], m.HCAs[i+1:]...)
	return m
}

// railsOf are the rails that a worker would have written.
func railsOf(m *machine.Machine, before []v1alpha1.Rail) (out []v1alpha1.Rail) {
	ports, _ := Ports(m, before)
	for _, p := range ports {
		out = append(out, p.Rail)
	}
	return out
}

// show writes ports as rail.plane=name/port@netdev.
func show(ports []Port) string {
	var words []string
	for _, p := range ports {
		words = append(words, fmt.Sprintf("%d.%d=%s/%d@%s", p.Rail.Rail, p.Plane, p.HCA, p.Port, p.Netdev))
	}
	return strings.Join(words, " ")
}

func TestRails(t *testing.T) {
	four := railsOf(pairs(4), nil)
	lost := railsOf(without(pairs(4), 1), four)
	swapped := pairs(4)
	swapped.HCAs[1] = fabricHCA("mlx5_9", "0000:2f:00.0")
	for _, tt := range []struct {
		name   string
		m      *machine.Machine
		before []v1alpha1.Rail
		want   string
	}{
		{"by GPU, not by name", pairs(4), nil, "0.0=mlx5_4/1@ 1.0=mlx5_3/1@ 2.0=mlx5_2/1@ 3.0=mlx5_1/1@"},
		{"one is lost, unknown before", without(pairs(4), 1), nil, "0.0=mlx5_4/1@ 1.0=mlx5_2/1@ 2.0=mlx5_1/1@"},
		{"one is lost", without(pairs(4), 1), four, "0.0=mlx5_4/1@ 2.0=mlx5_2/1@ 3.0=mlx5_1/1@"},
		{"one is lost, after a restart", without(pairs(4), 1), lost, "0.0=mlx5_4/1@ 2.0=mlx5_2/1@ 3.0=mlx5_1/1@"},
		{"it is back", pairs(4), lost, "0.0=mlx5_4/1@ 1.0=mlx5_3/1@ 2.0=mlx5_2/1@ 3.0=mlx5_1/1@"},
		{"another is in its place", swapped, lost, "0.0=mlx5_4/1@ 1.0=mlx5_9/1@ 2.0=mlx5_2/1@ 3.0=mlx5_1/1@"},
		{"the node has grown", pairs(4), railsOf(without(without(pairs(4), 0), 0), nil), "0.0=mlx5_4/1@ 1.0=mlx5_3/1@ 2.0=mlx5_2/1@ 3.0=mlx5_1/1@"},
		{
			"a railsOf list that lies", pairs(2),
			[]v1alpha1.Rail{{ID: "0000:11:00.0", Role: "fabric", Rail: 1}, {ID: "0000:21:00.0", Role: "fabric", Rail: 1}},
			"0.0=mlx5_1/1@ 1.0=mlx5_2/1@",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ports, omitted := Ports(tt.m, tt.before)
			if got := show(ports); got != tt.want || omitted != 0 {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestCablesOfOneHCA(t *testing.T) {
	m := pairs(1)
	two := &m.HCAs[0]
	two.Ports = append(two.Ports, machine.Port{Number: 2, LinkLayer: machine.InfiniBand, State: machine.PortDown})
	m.HCAs = append(m.HCAs,
		machine.HCA{Name: "nvl0", PCI: "0000:50:00.0", Role: machine.RoleNVSwitch, Ports: two.Ports},
		machine.HCA{Name: "vf0", PCI: "0000:11:00.1", PhysFn: "0000:11:00.0", Role: machine.RoleFabric, Ports: two.Ports},
		machine.HCA{
			Name: "mlx5_bond_0", PCI: "0000:60:00.0", Role: machine.RoleStorage, BondSlaves: []string{"ens1f0", "ens1f1"},
			Ports: []machine.Port{{Number: 1, LinkLayer: machine.Ethernet, State: machine.PortActive, Netdevs: []machine.Netdev{{Name: "bond0", Type: "ether"}}}},
		},
		machine.HCA{
			Name: "roce", PCI: "0000:70:00.0", Role: machine.RoleStorage,
			Ports: []machine.Port{{Number: 1, LinkLayer: machine.Ethernet, Netdevs: []machine.Netdev{
				{Name: "ib0", Type: "infiniband"}, {Name: "eth0", Type: "ether"},
			}}},
		})
	ports, _ := Ports(m, nil)
	want := "0.0=mlx5_1/1@ 0.1=mlx5_1/2@ 0.0=mlx5_bond_0/1@ens1f0 0.1=mlx5_bond_0/1@ens1f1 1.0=roce/1@"
	if got := show(ports); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	var listen [][]string
	for _, p := range ports {
		listen = append(listen, p.Netdevs)
	}
	if diff := cmp.Diff([][]string{nil, nil, {"ens1f0"}, {"ens1f1"}, {"eth0"}}, listen); diff != "" {
		t.Errorf("listens on (-want +got):\n%s", diff)
	}
}

func TestPortsAreBounded(t *testing.T) {
	m := &machine.Machine{}
	for i := range 200 {
		m.HCAs = append(m.HCAs, fabricHCA(fmt.Sprint("mlx5_", i), ""))
	}
	if ports, omitted := Ports(m, nil); len(ports) != MaxRails || omitted != 200-MaxRails {
		t.Errorf("%d ports, %d omitted", len(ports), omitted)
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		" ab \x00rest": "ab", "\xff\x1b": "??", "": "", "äöü": "ä", "a b c": "a b",
	} {
		if got := Text(in, 3); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := Text(strings.Repeat("x", 1<<20), 10); len(got) != 10 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestLIDsOfAPort(t *testing.T) {
	h := &machine.HCA{Name: "mlx5_0"}
	for _, tt := range []struct{ lid, want int }{{0x1234, 0x1234}, {0xffff, 0xffff}, {0x10000, 0}, {-1, 0}} {
		p := cables(h, &machine.Port{Number: 1, LinkLayer: machine.InfiniBand, LID: tt.lid, SMLID: 1, PKeyIndex: 2})[0]
		if int(p.LID) != tt.want || p.SMLID != 1 || p.PKeyIndex != 2 || p.Subnet != "fe80000000000000" {
			t.Errorf("LID %#x: %+v", tt.lid, p)
		}
	}
}
