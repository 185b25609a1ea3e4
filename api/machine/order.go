package machine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Sort brings every list into its order: PCI functions, GPUs and HCAs by PCI
// address, numerically, HCAs without one last and by name; ports and NUMA
// nodes by number; probes and skips by name.
func (m *Machine) Sort() {
	slices.SortFunc(m.PCI, func(a, b PCIFunction) int { return ComparePCI(a.Address, b.Address) })
	slices.SortFunc(m.GPUs, func(a, b GPU) int {
		return cmp.Or(ComparePCI(a.PCI, b.PCI), strings.Compare(a.UUID, b.UUID))
	})
	slices.SortFunc(m.HCAs, func(a, b HCA) int {
		return cmp.Or(ComparePCI(a.PCI, b.PCI), CompareNames(a.Name, b.Name))
	})
	for i := range m.HCAs {
		slices.SortFunc(m.HCAs[i].Ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	}
	slices.SortFunc(m.CPU.NUMA, func(a, b NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(m.Probes, func(a, b Probe) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Skipped, func(a, b Skipped) int {
		return cmp.Or(CompareNames(a.Name, b.Name), strings.Compare(a.Reason, b.Reason))
	})
}

// CompareNames orders device names with their trailing number as a number:
// mlx5_2 before mlx5_10.
func CompareNames(a, b string) int {
	pa, na := splitNumber(a)
	pb, nb := splitNumber(b)
	return cmp.Or(strings.Compare(pa, pb), cmp.Compare(na, nb), strings.Compare(a, b))
}

func splitNumber(s string) (prefix string, number int) {
	prefix = strings.TrimRight(s, "0123456789")
	number, err := strconv.Atoi(s[len(prefix):])
	if err != nil {
		return s, -1
	}
	return prefix, number
}

// Function returns the PCI function with this address, or nil.
func (m *Machine) Function(address string) *PCIFunction {
	for i := range m.PCI {
		if m.PCI[i].Address == address {
			return &m.PCI[i]
		}
	}
	return nil
}

// normalize makes nil lists empty, so that JSON has [] and never null.
func (m *Machine) normalize() {
	empty(&m.PCI)
	empty(&m.GPUs)
	empty(&m.HCAs)
	empty(&m.Probes)
	empty(&m.Skipped)
	empty(&m.CPU.NUMA)
	m.PCI = slices.Clone(m.PCI)
	for i := range m.PCI {
		empty(&m.PCI[i].Upstream)
	}
	m.GPUs = slices.Clone(m.GPUs)
	for i := range m.GPUs {
		empty(&m.GPUs[i].NVLinks)
		empty(&m.GPUs[i].MIG.Devices)
	}
	m.CPU.NUMA = slices.Clone(m.CPU.NUMA)
	for i := range m.CPU.NUMA {
		empty(&m.CPU.NUMA[i].Distances)
	}
	m.HCAs = slices.Clone(m.HCAs)
	for i := range m.HCAs {
		m.HCAs[i].normalize()
	}
}

func (h *HCA) normalize() {
	empty(&h.CharDevices.UVerbs)
	empty(&h.CharDevices.UMAD)
	empty(&h.CharDevices.ISSM)
	empty(&h.Ports)
	h.Ports = slices.Clone(h.Ports)
	for i := range h.Ports {
		empty(&h.Ports[i].Netdevs)
	}
}

func empty[T any](s *[]T) {
	if *s == nil {
		*s = []T{}
	}
}
