//go:build vmguest && linux

package pcie_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/vm/guest"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// library is NVML for a guest whose display functions are GPUs.
type library struct {
	addresses []string
}

func (l library) Open() (machine.Driver, int, error) {
	return machine.Driver{Version: "570.86.15", CUDA: "12.8"}, len(l.addresses), nil
}

func (l library) GPU(index int) (machine.GPU, error) {
	return machine.GPU{
		UUID: fmt.Sprintf("GPU-%d", index), Index: index, PCI: l.addresses[index], Product: "NVIDIA H100 80GB HBM3",
		Health: machine.Health{State: machine.Healthy},
	}, nil
}

func (l library) Close() error { return nil }

// scanGPUs scans with GPUs on the display functions, and with soft RDMA on
// every network device.
func scanGPUs(t *testing.T) *machine.Machine {
	t.Helper()
	var l library
	for _, f := range functions() {
		if f.Class == "0x038000" {
			l.addresses = append(l.addresses, f.Address)
		}
	}
	var names []string
	for name := range netdevs(t) {
		names = append(names, name)
	}
	slices.SortFunc(names, machine.CompareNames)
	guest.SoftRDMA(t, names...)
	m := scan(t, host.Options{GPUs: gpu.Sources{{Vendor: nvml.Vendor(), Library: l}}})
	if len(m.GPUs) != 10 || len(m.HCAs) != 10 {
		t.Fatalf("%d GPUs, %d HCAs, probes %+v", len(m.GPUs), len(m.HCAs), m.Probes)
	}
	return m
}

// classes are the ways between the groups of places, each group with itself
// included: between different devices of it.
func classes() map[string]string {
	return map[string]string{
		"AA": "PIX", "AB": "PHB", "AC": "SYS", "AD": "SYS", "AE": "SYS", "AF": "SYS", "AG": "SYS",
		"BB": "PIX", "BC": "SYS", "BD": "SYS", "BE": "SYS", "BF": "SYS", "BG": "SYS",
		"CC": "PIX", "CD": "PHB", "CE": "PHB", "CF": "NODE", "CG": "NODE",
		"DD": "PIX", "DE": "PXB", "DF": "NODE", "DG": "NODE",
		"EE": "PIX", "EF": "NODE", "EG": "NODE",
		"FG": "PHB",
	}
}

// check compares every pair of a matrix with the class that want gives the two
// devices.
func check(t *testing.T, m *machine.Machine, want func(a, b affinity.Device) string) {
	t.Helper()
	matrix := affinity.Of(m)
	got, expected := map[string]string{}, map[string]string{}
	for i, a := range matrix.Devices {
		for j, b := range matrix.Devices {
			pair := a.Name + " " + b.Name
			got[pair], expected[pair] = matrix.At(i, j).String(), "X"
			if i != j {
				expected[pair] = want(a, b)
			}
		}
	}
	if diff := cmp.Diff(expected, got); diff != "" || len(got) != 400 {
		t.Errorf("%d pairs (-want +got):\n%s", len(got), diff)
	}
}

func byPlace() func(a, b affinity.Device) string {
	group := map[string]string{}
	for _, p := range places() {
		for _, list := range []map[string]string{p.gpus, p.nics} {
			for address := range list {
				group["0000:"+address] = p.group
			}
		}
	}
	ways := classes()
	return func(a, b affinity.Device) string {
		x, y := group[a.PCI], group[b.PCI]
		return ways[min(x, y)+max(x, y)]
	}
}

// The network devices as HCAs of hardware: a soft device has no function, so
// each gets its network device's.
func TestPathClassesFollowTheTree(t *testing.T) {
	m := scanGPUs(t)
	tree := sysfs.New("/sys")
	for i := range m.HCAs {
		h := &m.HCAs[i]
		h.Virtual, h.Role = false, machine.RoleFabric
		h.PCI = sysfs.ParsePlace(tree.Link("class/net/" + h.Ports[0].Netdevs[0].Name)).Function()
	}
	check(t, m, byPlace())
}

// NVIDIA's own tool fails on a node with soft RDMA. Here such devices have no
// place, though their network devices do: they do not move data by a PCI
// function of those. What is between the GPUs stays as it is.
func TestSoftRDMAHasNoPlaceAndSpoilsNothing(t *testing.T) {
	m := scanGPUs(t)
	gpus := byPlace()
	check(t, m, func(a, b affinity.Device) string {
		if a.GPU && b.GPU {
			return gpus(a, b)
		}
		return "unknown"
	})
	for _, h := range m.HCAs {
		if !h.Virtual || h.Role != machine.RoleVirtual || h.PCI != "" {
			t.Errorf("%s: virtual %t, role %s, PCI %q", h.Name, h.Virtual, h.Role, h.PCI)
		}
	}
	if rails := affinity.Rails(m); !slices.Equal(rails, slices.Repeat([]int{-1}, 10)) {
		t.Errorf("soft RDMA has rails: %v", rails)
	}
}
