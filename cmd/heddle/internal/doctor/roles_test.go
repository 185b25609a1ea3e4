package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/golden"
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

// TestRoles: the file has what differs from near, the roles that are configured, and the findings.
func TestRoles(t *testing.T) {
	golden.Rows(t, "testdata/roles.txt", *update, func(differs string) string {
		m, set := near(), config.Roles{}
		for line := range strings.Lines(differs) {
			line = strings.TrimSpace(line)
			switch word, glob, _ := strings.Cut(line, " "); word {
			case "fabric":
				set.Fabric = append(set.Fabric, config.Glob(glob))
			case "storage":
				set.Storage = append(set.Storage, config.Glob(glob))
			default:
				golden.Change(t, m, line)
			}
		}
		var list Findings
		list.roles(m, &set)
		var got []string
		for _, f := range list {
			got = append(got, fmt.Sprintf("%s %s: %s -> %s", f.Level, f.Subject, f.Message, f.Remedy))
		}
		return strings.Join(got, "\n")
	})
}
