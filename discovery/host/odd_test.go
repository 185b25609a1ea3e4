package host

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// A machine that is empty or broken in any place still gives a Machine.
func TestScanOddTrees(t *testing.T) {
	const mlx0 = "sys/class/infiniband/mlx5_0"
	for _, tt := range []struct {
		name string
		bend func(*sysfstest.Tree)
		// gone are HCAs that are not in the machine any more.
		gone []string
		// skipped are names that must be among the skipped.
		skipped []string
		check   func(*testing.T, *machine.Machine)
	}{
		{
			name: "dead port keeps its role",
			bend: func(tree *sysfstest.Tree) {
				tree.Attributes(mlx0+"/ports/1", map[string]string{
					"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)", "sm_lid": "0x0", "lid": "0xffff",
				})
			},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				p := m.HCAs[0].Ports[0]
				if p.State != machine.PortDown || *p.RateGbps != 10 || m.HCAs[0].Role != machine.RoleFabric {
					t.Errorf("port %+v, role %s", p, m.HCAs[0].Role)
				}
			},
		},
		{
			name:    "empty node_guid",
			bend:    func(tree *sysfstest.Tree) { tree.Raw(mlx0+"/node_guid", "") },
			skipped: []string{"mlx5_0/node_guid"},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				if h := m.HCAs[0]; h.NodeGUID != "" || h.Role != machine.RoleFabric {
					t.Errorf("%+v", h)
				}
			},
		},
		{
			name:    "unreadable state",
			bend:    func(tree *sysfstest.Tree) { tree.Unreadable(mlx0 + "/ports/1/state") },
			skipped: []string{"mlx5_0/ports/1"},
		},
		{
			name:    "rate of another language",
			bend:    func(tree *sysfstest.Tree) { tree.Write(mlx0+"/ports/1/rate", "schnell") },
			skipped: []string{"mlx5_0/ports/1"},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				if p := m.HCAs[0].Ports[0]; p.RateGbps != nil || p.Rate != "schnell" {
					t.Errorf("%+v", p)
				}
			},
		},
		{
			name: "class entry that is a directory",
			bend: func(tree *sysfstest.Tree) {
				tree.Remove("sys/class/infiniband/mlx5_0")
				tree.Write(mlx0+"/ports/1/state", "4: ACTIVE")
				tree.Write(mlx0+"/ports/1/link_layer", "InfiniBand")
			},
			skipped: []string{"mlx5_0"},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				h := m.HCAs[len(m.HCAs)-1]
				if h.Name != "mlx5_0" || h.PCI != "" || h.Virtual || h.Ports[0].State != machine.PortActive {
					t.Errorf("%+v", h)
				}
			},
		},
		{
			name:    "class entry that is nothing",
			bend:    func(tree *sysfstest.Tree) { tree.Write("sys/class/infiniband/README", "hello") },
			skipped: []string{"README"},
		},
		{
			name:    "unreadable PCI class",
			bend:    func(tree *sysfstest.Tree) { tree.Unreadable("sys/bus/pci/devices/0000:13:00.0/class") },
			skipped: []string{"0000:13:00.0"},
		},
		{
			name:    "NUMA node of another language",
			bend:    func(tree *sysfstest.Tree) { tree.Write("sys/bus/pci/devices/0000:13:00.0/numa_node", "eins") },
			skipped: []string{"0000:13:00.0"},
		},
		{
			name:    "device node missing",
			bend:    func(tree *sysfstest.Tree) { tree.Remove("dev/infiniband/uverbs0") },
			skipped: []string{"mlx5_0/uverbs0"},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				if c := m.HCAs[0].CharDevices; len(c.UVerbs) != 0 || len(c.UMAD) != 1 {
					t.Errorf("%+v", c)
				}
			},
		},
		{
			name: "no RDMA driver",
			bend: func(tree *sysfstest.Tree) { tree.Remove("sys/class/infiniband") },
			gone: []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8"},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				if i := slices.IndexFunc(m.Probes, func(p machine.Probe) bool { return p.Name == "rdma" }); m.Probes[i].State != machine.ProbeAbsent {
					t.Errorf("%+v", m.Probes)
				}
			},
		},
		{
			name: "mlx5_10 after mlx5_2 among HCAs without an address",
			bend: func(tree *sysfstest.Tree) {
				for _, name := range []string{"rxe10", "rxe2"} {
					tree.RDMA("sys/devices/virtual", sysfstest.RDMA{
						Name: name, UVerbs: -1, UMAD: -1, ISSM: -1,
						Attributes: map[string]string{"node_type": "1: CA", "node_guid": "5054:00ff:fe00:0004", "parent": "ens1f0np0"},
						Ports:      []map[string]string{{"state": "4: ACTIVE", "link_layer": "Ethernet", "rate": "2.5 Gb/sec (1X SDR)"}},
					})
				}
			},
			check: func(t *testing.T, m *machine.Machine) {
				t.Helper()
				a, b := m.HCAs[9], m.HCAs[10]
				if a.Name != "rxe2" || b.Name != "rxe10" || !a.Virtual || a.Driver != "rdma_rxe" || a.Role != machine.RoleVirtual ||
					a.Ports[0].Netdevs[0].Name != "ens1f0np0" {
					t.Errorf("%+v, %+v", a, b)
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			sysfstest.DGXH100(tree)
			tt.bend(tree)
			m := at(tree, &gpus{count: 8}).Scan(t.Context())
			if err := m.Validate(); err != nil {
				t.Fatal(err)
			}
			for n := range 9 {
				name := fmt.Sprintf("mlx5_%d", n)
				_, there := rolesOf(m)[name]
				if there == slices.Contains(tt.gone, name) {
					t.Errorf("%s is in the machine: %t", name, there)
				}
			}
			var skipped []string
			for _, s := range m.Skipped {
				skipped = append(skipped, s.Name)
			}
			if diff := cmp.Diff(tt.skipped, skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s\n%v", diff, m.Skipped)
			}
			if tt.check != nil {
				tt.check(t, m)
			}
		})
	}
}
