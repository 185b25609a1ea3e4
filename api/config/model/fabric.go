package model

import (
	"cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

// Fabric is the node's RDMA side in a few words.
type Fabric struct {
	// HCAs is the number of HCAs of role fabric, up or down. A virtual
	// function whose physical one is on the same machine does not count.
	HCAs int
	// Type is the HCAs' hca_type (MT4129), the most frequent one.
	Type string
	// LinkLayer is InfiniBand or Ethernet, the more frequent one.
	LinkLayer string
	// RateGbps is the most frequent rate of active ports in 10^9 bits a
	// second; 0 if none is active.
	RateGbps int
}

// FabricOf sums up the fabric HCAs of a machine. Ties go to the larger value.
func FabricOf(m *machine.Machine) Fabric {
	physical := map[string]bool{}
	for i := range m.HCAs {
		physical[m.HCAs[i].PCI] = true
	}
	var fabric Fabric
	types, layers, rates := map[string]int{}, map[string]int{}, map[int]int{}
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if h.Role != machine.RoleFabric || h.PhysFn != "" && physical[h.PhysFn] {
			continue
		}
		fabric.HCAs++
		count(types, h.Type)
		for j := range h.Ports {
			count(layers, h.Ports[j].LinkLayer)
			if rate := h.Ports[j].RateGbps; rate != nil && h.Ports[j].State == machine.PortActive {
				count(rates, int(min(max(*rate, 0), 1e6)))
			}
		}
	}
	fabric.Type, fabric.LinkLayer, fabric.RateGbps = mode(types), mode(layers), mode(rates)
	return fabric
}

// count counts what is known: the zero value is not.
func count[T comparable](counts map[T]int, v T) {
	var zero T
	if v != zero {
		counts[v]++
	}
}

// mode is the most frequent value, ties to the larger.
func mode[T cmp.Ordered](counts map[T]int) (best T) {
	for v, n := range counts {
		if n > counts[best] || n == counts[best] && v > best {
			best = v
		}
	}
	return best
}
