// Package affinity computes how far apart the devices of one machine are: GPU to
// GPU, GPU to HCA, HCA to HCA, and which HCA is which rail.
//
// It is pure: it decides from a [machine.Machine], reads no hardware, keeps no
// state and never fails. What the machine does not report is [Unknown],
// which is a separate class and never a guessed distance.
package affinity

import (
	"cmp"
	"strconv"
)

// Kind is the kind of path between two devices. A greater kind is a shorter
// path.
type Kind uint8

// The kinds, from the longest path to the shortest.
const (
	// Unknown: one of the two has no place in the PCI tree, or the kernel
	// reports no NUMA node for it and there are several.
	Unknown Kind = iota
	// SYS leaves the NUMA node over the link between processors.
	SYS
	// NODE crosses from one host bridge to another of the same NUMA node.
	NODE
	// PHB stays under one host bridge and passes through it.
	PHB
	// PXB stays below the host bridge and crosses several switches.
	PXB
	// PIX stays within one PCIe switch.
	PIX
	// NVLink goes by NVLink, direct or through NVSwitches, or by what another maker
	// has in its place.
	NVLink
	// Self is the device itself.
	Self
)

// Class is the path between two devices. The zero value is Unknown.
type Class struct {
	Kind Kind
	// Links is the number of NVLinks between the two; 0 for other kinds.
	Links int
	// Maker is the maker's word for the links, XGMI; empty is NVLink.
	Maker string
}

// Compare orders by closeness: it is positive if c is the shorter path. More
// NVLinks are closer than fewer.
func (c Class) Compare(d Class) int {
	return cmp.Or(cmp.Compare(c.Kind, d.Kind), cmp.Compare(c.Links, d.Links))
}

// String returns the field's word: X, NV18, PIX, PXB, PHB, NODE, SYS; "unknown".
func (c Class) String() string {
	if c.Kind == NVLink {
		return cmp.Or(c.Maker, "NV") + strconv.Itoa(c.Links)
	}
	return [...]string{
		Unknown: "unknown", SYS: "SYS", NODE: "NODE", PHB: "PHB", PXB: "PXB", PIX: "PIX", Self: "X",
	}[c.Kind]
}

// Legend explains the words that [Class.String] writes, closest first, one
// line each, in the order word, meaning.
func Legend() [][2]string {
	return [][2]string{
		{"X", "the device itself"},
		{"NV#", "# NVLinks together, direct or through NVSwitches"},
		{"XGMI#", "# XGMI links together, direct"},
		{"MX#", "# connections by MetaXLink together, direct"},
		{"PIX", "inside one PCIe switch"},
		{"PXB", "over several PCIe switches, below one host bridge"},
		{"PHB", "through the host bridge that both hang from"},
		{"NODE", "between host bridges of one NUMA node"},
		{"SYS", "between NUMA nodes, over the processors' link"},
		{"unknown", "no place in the PCI tree, or no NUMA node reported by the kernel"},
	}
}
