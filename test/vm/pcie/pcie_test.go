//go:build vmguest && linux

// Package pcie_test runs inside a guest of test/vm that has NUMA nodes, host
// bridges and PCIe switches, and holds discovery and the path classes against
// the tree that the kernel made of them. See vm.Spec.PCITree for its shape.
package pcie_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/vm/guest"
)

func TestMain(m *testing.M) { guest.Main(m) }

func scan(t *testing.T, o host.Options) *machine.Machine {
	t.Helper()
	o.NodeName = "guest"
	return host.New(o).Scan(t.Context())
}

// place is where the guest's functions hang; the buses are the firmware's
// count, depth first.
type place struct {
	group string
	numa  int
	root  string
	// above are the bridges over the group's ports, ports the bridge over
	// each function, by its address.
	above string
	gpus  map[string]string
	nics  map[string]string
}

// places are the groups of functions that are equally far from all others.
func places() []place {
	return []place{
		{
			"A", 0, "pci0000:40", "40:00.0 41:00.0",
			map[string]string{"43:00.0": "42:00.0", "44:00.0": "42:01.0"},
			map[string]string{"45:00.0": "42:02.0", "46:00.0": "42:03.0"},
		},
		{
			"B", 0, "pci0000:40", "40:01.0 47:00.0",
			map[string]string{"49:00.0": "48:00.0", "4a:00.0": "48:01.0"},
			map[string]string{"4b:00.0": "48:02.0", "4c:00.0": "48:03.0"},
		},
		{
			"C", 1, "pci0000:80", "80:00.0 81:00.0",
			map[string]string{"83:00.0": "82:00.0", "84:00.0": "82:01.0"},
			map[string]string{"85:00.0": "82:02.0", "86:00.0": "82:03.0"},
		},
		{
			"D", 1, "pci0000:80", "80:01.0 87:00.0",
			map[string]string{"89:00.0": "88:00.0", "8a:00.0": "88:01.0"},
			map[string]string{"8b:00.0": "88:02.0", "8c:00.0": "88:03.0"},
		},
		{
			"E", 1, "pci0000:80", "80:01.0 87:00.0 88:04.0 8d:00.0",
			map[string]string{"8f:00.0": "8e:00.0"},
			map[string]string{"90:00.0": "8e:01.0"},
		},
		{"F", 1, "pci0000:c0", "", map[string]string{"c1:00.0": "c0:00.0"}, nil},
		{"G", 1, "pci0000:c0", "", nil, map[string]string{"c2:00.0": "c0:01.0"}},
	}
}

// functions are what a scan of the tree must find.
func functions() []machine.PCIFunction {
	m := machine.Machine{}
	for _, p := range places() {
		add := func(address, port string, f machine.PCIFunction) {
			f.Address, f.NUMA, f.CPUs, f.Root = "0000:"+address, &p.numa, []string{"0", "1"}[p.numa], p.root
			for _, bridge := range append(strings.Fields(p.above), port) {
				f.Upstream = append(f.Upstream, "0000:"+bridge)
			}
			f.LinkSpeed, f.LinkWidth = "2.5 GT/s PCIe", 1
			m.PCI = append(m.PCI, f)
		}
		for address, port := range p.gpus {
			add(address, port, machine.PCIFunction{Class: "0x038000", Vendor: "0x1234", Device: "0x1111"})
		}
		for address, port := range p.nics {
			add(address, port, machine.PCIFunction{
				Class: "0x020000", Vendor: "0x1af4", Device: "0x1041", Driver: "virtio-pci",
			})
		}
	}
	m.Sort()
	return m.PCI
}

func TestScanFindsTheTree(t *testing.T) {
	m := scan(t, host.Options{})
	if diff := cmp.Diff(functions(), m.PCI, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("PCI functions (-want +got):\n%s", diff)
	}
	nodes := []machine.NUMANode{
		{ID: 0, CPUs: "0", Distances: []int{10, 21}}, {ID: 1, CPUs: "1", Distances: []int{21, 10}},
	}
	if diff := cmp.Diff(nodes, m.CPU.NUMA); diff != "" {
		t.Errorf("NUMA nodes (-want +got):\n%s", diff)
	}
	if len(m.Skipped) > 0 {
		t.Errorf("skipped: %+v", m.Skipped)
	}
}

// netdevs are the addresses of the network devices' functions, by name. The
// guest's MAC addresses count in the order of the tree; the kernel's names do
// not: it probes host bridges side by side.
func netdevs(t *testing.T) map[string]string {
	t.Helper()
	var nics []string
	for _, f := range functions() {
		if f.Class == "0x020000" {
			nics = append(nics, f.Address)
		}
	}
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, entry := range entries {
		mac, err := os.ReadFile("/sys/class/net/" + entry.Name() + "/address")
		if err != nil {
			continue // bonding_masters is a file of the class.
		}
		if digit, ok := strings.CutPrefix(strings.TrimSpace(string(mac)), "52:54:00:00:00:0"); ok {
			found[entry.Name()] = nics[digit[0]-'0']
		}
	}
	if len(found) != len(nics) {
		t.Fatalf("%d network devices of %d: %v", len(found), len(nics), found)
	}
	return found
}

// virtio puts a device of its own between the function and the network device.
func TestNetworkDevicesLeadToTheirFunctions(t *testing.T) {
	tree := sysfs.New("/sys")
	for name, address := range netdevs(t) {
		if got := sysfs.ParsePlace(tree.Link("class/net/" + name)).Function(); got != address {
			t.Errorf("%s is on %q, want %s", name, got, address)
		}
		nics, err := tree.Interfaces(address)
		if err != nil || len(nics) != 1 || nics[0].Name != name || nics[0].Type != "ether" {
			t.Errorf("%s has %+v (%v), want %s", address, nics, err, name)
		}
	}
}

// A function that is taken off the bus leaves the machine, and comes back the
// same.
func TestFunctionLeavesAndReturns(t *testing.T) {
	h := guest.Watch(t)
	const address = "0000:44:00.0"
	if err := os.WriteFile("/sys/bus/pci/devices/"+address+"/remove", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	took := guest.Await(t, h, address+" is gone", func(m *machine.Machine) bool { return m.Function(address) == nil })
	t.Log("gone after", took.Round(time.Millisecond))
	if err := os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	took = guest.Await(t, h, address+" is back", func(m *machine.Machine) bool { return m.Function(address) != nil })
	t.Log("back after", took.Round(time.Millisecond))
	if diff := cmp.Diff(functions(), h.Machine().PCI, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("PCI functions (-want +got):\n%s", diff)
	}
}
