package doctor

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// near is a machine of three switches with a GPU and a fabric HCA each, and a
// storage HCA of 100 Gb/s elsewhere.
func near() *machine.Machine {
	m := &machine.Machine{Version: machine.Version, Node: "n"}
	hca := func(n int, root string, role machine.Role, rate float64) {
		address := fmt.Sprintf("0000:%d2:00.0", n)
		m.PCI = append(m.PCI, machine.PCIFunction{Address: address, Root: root, Upstream: []string{"b"}})
		m.HCAs = append(m.HCAs, machine.HCA{
			Name: fmt.Sprintf("mlx5_%d", n), PCI: address, Role: role, Type: "MT4129", Vendor: "0x15b3", Device: "0x1021",
			Ports: []machine.Port{{Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortActive, RateGbps: &rate}},
		})
	}
	for n := range 3 {
		root := fmt.Sprintf("pci0000:%d0", n)
		gpu := fmt.Sprintf("0000:%d1:00.0", n)
		m.PCI = append(m.PCI, machine.PCIFunction{Address: gpu, Root: root, Upstream: []string{"b"}, Vendor: "0x10de", Class: "0x030200"})
		m.GPUs = append(m.GPUs, machine.GPU{UUID: fmt.Sprint("GPU-", n), Index: n, PCI: gpu})
		hca(n, root, machine.RoleFabric, 400)
	}
	hca(3, "pci0000:30", machine.RoleStorage, 100)
	return m
}

func TestRoles(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*machine.Machine)
		set    config.Roles
		want   []string
	}{
		{"a sound machine", func(*machine.Machine) {}, config.Roles{}, nil},
		{"no fabric HCA is near a GPU", farFabric, config.Roles{}, []string{
			"problem fabric HCAs: none of mlx5_3 shares a PCIe switch with a GPU, while mlx5_0, mlx5_1, mlx5_2 of role storage do" +
				" -> If those next to GPUs are the rails: rdma.roles.fabric: [mlx5_0, mlx5_1, mlx5_2].",
		}},
		{"the configuration has it so", farFabric, config.Roles{Fabric: []config.Glob{"mlx5_3"}}, []string{
			"note fabric HCAs: none of mlx5_3 shares a PCIe switch with a GPU, while mlx5_0, mlx5_1, mlx5_2 of role storage do" +
				" -> If those next to GPUs are the rails: rdma.roles.fabric: [mlx5_0, mlx5_1, mlx5_2].",
		}},
		{"a rail in Ethernet mode", func(m *machine.Machine) { m.HCAs[1].Ports[0].LinkLayer = machine.Ethernet }, config.Roles{}, []string{
			"problem mlx5_1: is Ethernet, where most HCAs of the fabric are InfiniBand: it is a rail because it is next to GPU1" +
				" -> mlxconfig -d 0000:12:00.0 query LINK_TYPE_P1 shows the mode of its port, and set changes it." +
				" rdma.roles.storage: [mlx5_1] takes it out of the fabric.",
		}},
		{"a spare", func(m *machine.Machine) { m.HCAs[1].Type = "MT4123" }, config.Roles{}, []string{
			"note mlx5_1: is MT4123, where most HCAs of the fabric are MT4129: it is a rail because it is next to GPU1" +
				" -> rdma.roles.storage: [mlx5_1] takes it out of the fabric.",
		}},
		{"two rails, of which one is a spare", func(m *machine.Machine) {
			m.HCAs = m.HCAs[:2]
			m.HCAs[0].Type, m.HCAs[0].Ports[0].RateGbps = "MT4123", new(200.0)
		}, config.Roles{}, []string{
			"note mlx5_0: is MT4123, where other HCAs of the fabric are MT4129: it is a rail because it is next to GPU0" +
				" -> rdma.roles.storage: [mlx5_0] takes it out of the fabric.",
		}},
		{"one HCA of the fabric, which is down, and one that is up", func(m *machine.Machine) {
			m.HCAs, m.PCI = m.HCAs[2:], nil
			m.HCAs[0].Ports[0].State = machine.PortDown
		}, config.Roles{}, []string{
			"note mlx5_3: has role storage, and is as fast as the fabric and next to no GPU, as all HCAs here: it is MT4129 InfiniBand," +
				" and most HCAs of the fabric are MT4129 InfiniBand -> rdma.roles.fabric: [mlx5_3] makes it a rail.",
		}},
		{"a GPU that left the bus", func(m *machine.Machine) { m.GPUs = m.GPUs[:2] }, config.Roles{}, []string{
			"problem mlx5_2: is next to no GPU, as others of its kind are: its GPU may have left the bus. It stays a rail" +
				" -> See dmesg for the GPU's XID, then reset it or reboot. rdma.roles.storage: [mlx5_2] takes it out of the fabric.",
		}},
		{"rails of two models and rates", func(m *machine.Machine) {
			for i := range 2 {
				h := m.HCAs[i]
				h.Name, h.Type, h.Ports = h.Name+"b", "MT4123", []machine.Port{h.Ports[0]}
				h.Ports[0].RateGbps = new(200.0)
				m.HCAs = append(m.HCAs, h)
			}
			m.HCAs = append(m.HCAs[:2], m.HCAs[4:]...)
		}, config.Roles{}, nil},
		{"storage as fast as the fabric, elsewhere", func(m *machine.Machine) { m.HCAs[3].Ports[0].RateGbps = new(400.0) }, config.Roles{}, nil},
		{"a BlueField as fast as the fabric, beside a GPU", blueField, config.Roles{}, []string{
			"note mlx5_3: has role storage, and is as fast as the fabric and next to GPU0: it is MT41692 InfiniBand," +
				" and most HCAs of the fabric are MT4129 InfiniBand -> rdma.roles.fabric: [mlx5_3] makes it a rail.",
		}},
		{"the same, decided by the configuration", blueField, config.Roles{Storage: []config.Glob{"mlx5_3"}}, nil},
		{"the same without switches", func(m *machine.Machine) {
			blueField(m)
			m.PCI = nil
		}, config.Roles{}, []string{
			"note mlx5_3: has role storage, and is as fast as the fabric and next to no GPU, as all HCAs here: it is MT41692 InfiniBand," +
				" and most HCAs of the fabric are MT4129 InfiniBand -> rdma.roles.fabric: [mlx5_3] makes it a rail.",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := near()
			tt.change(m)
			var list Findings
			list.roles(m, &tt.set)
			var got []string
			for _, f := range list {
				got = append(got, fmt.Sprintf("%s %s: %s -> %s", f.Level, f.Subject, f.Message, f.Remedy))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func farFabric(m *machine.Machine) {
	for i := range 3 {
		m.HCAs[i].Role = machine.RoleStorage
		m.HCAs[i].Ports[0].RateGbps = new(200.0)
	}
	m.HCAs[3].Role = machine.RoleFabric
	m.HCAs[3].Ports[0].RateGbps = new(400.0)
}

func blueField(m *machine.Machine) {
	m.HCAs[3].Ports[0].RateGbps, m.HCAs[3].Type = new(400.0), "MT41692"
	m.PCI[len(m.PCI)-1].Root = "pci0000:00"
}
