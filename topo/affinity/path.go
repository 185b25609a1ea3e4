package affinity

import (
	"github.com/heddle-dev/heddle/api/machine"
)

// spot is where a device hangs in the machine; gpu is nil for an HCA.
type spot struct {
	device Device
	gpu    *machine.GPU
	// here is the device's own function; nil if it has none.
	here *machine.PCIFunction
	// dma is the function that reaches GPU memory in its place (Data Direct);
	// nil on all but ConnectX-8 and later.
	dma *machine.PCIFunction
}

// hcaSpot finds an HCA's functions. A virtual function that the scan did not
// list hangs from the same bridge as its physical one.
func hcaSpot(m *machine.Machine, at int) spot {
	h := &m.HCAs[at]
	s := spot{device: Device{Name: h.Name, Index: at, PCI: h.PCI, Role: h.Role}}
	if h.PCI != "" {
		s.here = m.Function(h.PCI)
	}
	if s.here == nil && h.PhysFn != "" {
		s.here = m.Function(h.PhysFn)
	}
	if h.DataDirect != "" {
		s.dma = m.Function(h.DataDirect)
	}
	return s
}

// between returns the class of a pair. A GPU reaches an HCA with a Data-Direct
// function by the better of its two functions: the tree alone would call the
// best pair of such a machine the worst.
func between(a, b *spot, numaNodes int) Class {
	if a.gpu != nil && b.gpu != nil {
		if n := links(a.gpu, b.gpu); n > 0 {
			return Class{Kind: NVLink, Links: n, Maker: maker(a.gpu)}
		}
	}
	kind := path(a.here, b.here, numaNodes)
	if (a.gpu == nil) != (b.gpu == nil) {
		if a.dma != nil {
			kind = max(kind, path(a.dma, b.here, numaNodes))
		}
		if b.dma != nil {
			kind = max(kind, path(a.here, b.dma, numaNodes))
		}
	}
	return Class{Kind: kind}
}

// links returns the number of NVLinks between two GPUs: the direct ones, else, if
// both have links to NVSwitches, as many as the one with fewer has. Of direct
// links only those count that both ends report.
func links(a, b *machine.GPU) int {
	if n := min(linksTo(a, b.PCI), linksTo(b, a.PCI)); n > 0 {
		return n
	}
	return min(linksTo(a, machine.PeerNVSwitch), linksTo(b, machine.PeerNVSwitch))
}

func maker(g *machine.GPU) string {
	if len(g.NVLinks) == 0 {
		return ""
	}
	return g.NVLinks[0].Kind
}

func linksTo(g *machine.GPU, peer string) int {
	n := 0
	for i := range g.NVLinks {
		if g.NVLinks[i].Peer == peer {
			n += g.NVLinks[i].Links
		}
	}
	return n
}

// path returns the kind of path through the PCI tree, from the functions' ancestry
// in sysfs. A switch is two bridges in a row, an upstream and a downstream
// port: two functions under one switch share everything but their own
// downstream port.
func path(a, b *machine.PCIFunction, numaNodes int) Kind {
	switch {
	case a == nil || b == nil:
		return Unknown
	case a.Address == b.Address:
		return PIX
	case a.Root == b.Root && a.Root != "":
		return below(a.Upstream, b.Upstream)
	case numaNodes == 1:
		return NODE
	case a.NUMA == nil || b.NUMA == nil:
		return Unknown
	case *a.NUMA == *b.NUMA:
		return NODE
	}
	return SYS
}

// below returns the kind of path between two functions under one host bridge.
func below(a, b []string) Kind {
	shared := 0
	for shared < min(len(a), len(b)) && a[shared] == b[shared] {
		shared++
	}
	switch left := max(len(a), len(b)) - shared; {
	case shared == 0:
		return PHB
	case left <= 1:
		return PIX
	}
	return PXB
}

// numaNodes counts the nodes with processors: on Grace, a GPU's memory is a
// node too and no device is near it. 0 means that the machine does not report it.
func numaNodes(m *machine.Machine) int {
	n := 0
	for i := range m.CPU.NUMA {
		if m.CPU.NUMA[i].CPUs != "" {
			n++
		}
	}
	return n
}
