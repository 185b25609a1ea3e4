// Package fleet makes machines that are not there: the nodes of a mixed cluster with
// their GPUs, and where each of their cables ends.
//
// It owns what the pools of such a cluster are like and how many nodes each has. It
// starts nothing and decides nothing about groups: those who are given the nodes do.
package fleet

import (
	"fmt"
	"strconv"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// The bounds of a fleet: it has two groups of every pool at least.
const (
	MinNodes     = 73
	MaxNodes     = 100_000
	DefaultNodes = MinNodes
)

// Node is a machine.
type Node struct {
	Name string
	Spec v1alpha1.NodeTopologySpec
}

// GPUs returns how many it has.
func (n *Node) GPUs() int {
	sum := 0
	for _, a := range n.Spec.Accelerators {
		sum += int(a.Count)
	}
	return sum
}

// Pool is nodes of one shape.
type Pool struct {
	// Name is the usual name of such a machine.
	Name string
	// Product is as in the label gpu.product, empty without GPUs.
	Product string
	// GPUs and HCAs are the numbers of one node.
	GPUs, HCAs int32
	// Group is how many nodes share their leaf switches; the last group can be smaller.
	Group int
	// Cabling is how they are connected, in words.
	Cabling string
	Nodes   []Node
}

// New returns the pools of a fleet of a number of nodes, between MinNodes and MaxNodes: GB200
// trays in racks that are NVLink domains of 18, H20 in switchboxes of two pairs, one node
// without GPUs, and for the rest DGX H100 in units with a leaf for each rail.
func New(nodes int) []Pool {
	const rack, box, small = 18, 4, 256
	unit, pod := 8, 2
	if nodes > small {
		unit, pod = 32, 8
	}
	racks, boxes := max(2, nodes/4/rack), max(1, nodes/64)
	trays, h20, storage := racks*rack, boxes*box, 1
	pools := []Pool{
		{
			Name: "DGX H100", Product: "NVIDIA-H100-80GB-HBM3", GPUs: 8, HCAs: 8, Group: unit,
			Cabling: fmt.Sprintf("units of %d, a leaf switch for each rail, spines for %d units", unit, pod),
		},
		{
			Name: "GB200 tray", Product: "NVIDIA-GB200", GPUs: 4, HCAs: 4, Group: rack,
			Cabling: fmt.Sprintf("racks of %d, each an NVLink domain", rack),
		},
		{
			Name: "H20", Product: "NVIDIA-H20", GPUs: 8, HCAs: 4, Group: box / 2,
			Cabling: "pairs, two to a switchbox",
		},
		{Name: "storage", Group: 1, Cabling: "no cable of the fabric"},
	}
	for i, count := range []int{nodes - trays - h20 - storage, trays, h20, storage} {
		p := &pools[i]
		for at := range count {
			p.Nodes = append(p.Nodes, p.node(i, at, count, pod))
		}
	}
	return pools
}

// node returns one of count nodes of the pool with this number.
func (p *Pool) node(pool, at, count, pod int) Node {
	group, seat := at/p.Group, at%p.Group
	in := numbered(group, (count+p.Group-1)/p.Group)
	n := Node{}
	if p.GPUs > 0 {
		n.Spec.Accelerators = []v1alpha1.Accelerator{{Product: p.Product, Count: p.GPUs}}
	}
	leaves := ""
	switch pool {
	case 0:
		leaves = "su" + in
		n.Name = leaves + "-dgx" + numbered(seat, p.Group)
	case 1:
		leaves = "rack" + in
		n.Name = "r" + in + "-tray" + numbered(seat, p.Group)
		n.Spec.NVLinkDomain = fmt.Sprintf("a84f3d2b-e94c-4ec2-bc97-%012x.1", group+1)
	case 2:
		leaves = "pair" + in
		n.Name = "h20-" + numbered(at, count)
		n.Spec.Path = []string{"switchbox-" + strconv.Itoa(group/2+1), "dragonfly-" + strconv.Itoa(group+1)}
		n.Spec.PathSource = v1alpha1.SourceStatic
	default:
		n.Name = "storage" + in
	}
	for rail := range p.HCAs {
		leaf := v1alpha1.Switch{
			ID: fmt.Sprintf("b83fd2%02x%06x%02x", pool, group, rail), Name: fmt.Sprint(leaves, "-rail", rail),
		}
		n.Spec.Rails = append(n.Spec.Rails, port(pool, at, rail, seat+1, &leaf))
		if pool == 0 && seat == 0 {
			n.Spec.Uplinks = append(n.Spec.Uplinks, uplink(leaf.ID, group/pod, rail))
		}
	}
	return n
}

// port returns an active port of the compute fabric.
func port(pool, node int, rail int32, switchPort int, leaf *v1alpha1.Switch) v1alpha1.Rail {
	return v1alpha1.Rail{
		Rail: rail, HCA: fmt.Sprintf("mlx5_%d", rail), Port: 1, ID: fmt.Sprintf("0000:%02x:00.0", 0x18+8*rail),
		GUID: fmt.Sprintf("946d:%04x:%04x:%02x%02x", node>>16, node&0xffff, pool, rail),
		Role: "fabric", LinkState: v1alpha1.LinkActive, RateGbps: 400, LinkLayer: "InfiniBand",
		Switch: leaf, SwitchPort: strconv.Itoa(switchPort), Source: v1alpha1.SourceIB, Confidence: 100,
	}
}

// uplink returns a cable from a leaf to the spine of its rail, which units of one pod share.
func uplink(leaf string, pod int, rail int32) v1alpha1.Uplink {
	return v1alpha1.Uplink{
		Leaf: leaf, Port: 33, Peer: fmt.Sprintf("5b1e%010x%02x", pod, rail),
		PeerName: fmt.Sprintf("pod%d-rail%d", pod+1, rail), PeerPort: 1,
	}
}

// numbered returns a place as a number from 1, with as many digits as the last of count has.
func numbered(at, count int) string {
	return fmt.Sprintf("%0*d", len(strconv.Itoa(count)), at+1)
}

// Rewire puts the cable of a port into another node's leaf of the same rail, at its
// first port behind those of the group. The specs of before keep what they have.
func Rewire(n, other *Node, rail, switchPort int) Node {
	out := *n
	out.Spec = *n.Spec.DeepCopy()
	out.Spec.Rails[rail].Switch = other.Spec.Rails[rail].Switch.DeepCopy()
	out.Spec.Rails[rail].SwitchPort = strconv.Itoa(switchPort)
	return out
}
