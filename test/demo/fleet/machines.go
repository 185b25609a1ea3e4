package main

import (
	"fmt"
	"strconv"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// The bounds of a fleet: it has two groups of every pool at least.
const (
	minNodes = 73
	maxNodes = 100_000
)

// machine is a node of the fleet.
type machine struct {
	name string
	gpus int32
	spec v1alpha1.NodeTopologySpec
}

// pool is machines of one shape.
type pool struct {
	// name is the usual name of such a machine.
	name string
	// product is as in the label gpu.product, empty without GPUs.
	product string
	// gpus and hcas are the numbers of one node.
	gpus, hcas int32
	// group is how many nodes share their leaf switches; the last group can be smaller.
	group int
	// cabling is how they are connected, in words.
	cabling string
	nodes   []machine
}

// newFleet returns the pools of a fleet of a number of nodes, between minNodes and maxNodes: GB200
// trays in racks that are NVLink domains of 18, H20 in switchboxes of two pairs, one node
// without GPUs, and for the rest DGX H100 in units with a leaf for each rail.
func newFleet(nodes int) []pool {
	const rack, box, small = 18, 4, 256
	unit, pod := 8, 2
	if nodes > small {
		unit, pod = 32, 8
	}
	racks, boxes := max(2, nodes/4/rack), max(1, nodes/64)
	trays, h20, storage := racks*rack, boxes*box, 1
	pools := []pool{
		{
			name: "DGX H100", product: "NVIDIA-H100-80GB-HBM3", gpus: 8, hcas: 8, group: unit,
			cabling: fmt.Sprintf("units of %d, a leaf switch for each rail, spines for %d units", unit, pod),
		},
		{
			name: "GB200 tray", product: "NVIDIA-GB200", gpus: 4, hcas: 4, group: rack,
			cabling: fmt.Sprintf("racks of %d, each an NVLink domain", rack),
		},
		{
			name: "H20", product: "NVIDIA-H20", gpus: 8, hcas: 4, group: box / 2,
			cabling: "pairs, two to a switchbox",
		},
		{name: "storage", group: 1, cabling: "no cable of the fabric"},
	}
	for i, count := range []int{nodes - trays - h20 - storage, trays, h20, storage} {
		p := &pools[i]
		for at := range count {
			p.nodes = append(p.nodes, p.node(i, at, count, pod))
		}
	}
	return pools
}

// node returns one of count nodes of the pool with this number.
func (p *pool) node(shape, at, count, pod int) machine {
	group, seat := at/p.group, at%p.group
	in := numbered(group, (count+p.group-1)/p.group)
	n := machine{gpus: p.gpus}
	if p.gpus > 0 {
		n.spec.Accelerators = []v1alpha1.Accelerator{{Product: p.product, Count: p.gpus}}
	}
	leaves := ""
	switch shape {
	case 0:
		leaves = "su" + in
		n.name = leaves + "-dgx" + numbered(seat, p.group)
	case 1:
		leaves = "rack" + in
		n.name = "r" + in + "-tray" + numbered(seat, p.group)
		n.spec.NVLinkDomain = fmt.Sprintf("a84f3d2b-e94c-4ec2-bc97-%012x.1", group+1)
	case 2:
		leaves = "pair" + in
		n.name = "h20-" + numbered(at, count)
		n.spec.Path = []string{"switchbox-" + strconv.Itoa(group/2+1), "dragonfly-" + strconv.Itoa(group+1)}
		n.spec.PathSource = v1alpha1.SourceStatic
	default:
		n.name = "storage" + in
	}
	for rail := range p.hcas {
		leaf := v1alpha1.Switch{
			ID: fmt.Sprintf("b83fd2%02x%06x%02x", shape, group, rail), Name: fmt.Sprint(leaves, "-rail", rail),
		}
		n.spec.Rails = append(n.spec.Rails, port(shape, at, rail, seat+1, &leaf))
		if shape == 0 && seat == 0 {
			n.spec.Uplinks = append(n.spec.Uplinks, uplink(leaf.ID, group/pod, rail))
		}
	}
	return n
}

// port returns an active port of the compute fabric.
func port(shape, node int, rail int32, switchPort int, leaf *v1alpha1.Switch) v1alpha1.Rail {
	return v1alpha1.Rail{
		Rail: rail, HCA: fmt.Sprintf("mlx5_%d", rail), Port: 1, ID: fmt.Sprintf("0000:%02x:00.0", 0x18+8*rail),
		GUID: fmt.Sprintf("946d:%04x:%04x:%02x%02x", node>>16, node&0xffff, shape, rail),
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

// rewired returns a node whose cable of a port is in another node's leaf of the same rail.
func (n *machine) rewired(other *machine, rail, switchPort int) machine {
	out := *n
	out.spec = *n.spec.DeepCopy()
	out.spec.Rails[rail].Switch = other.spec.Rails[rail].Switch
	out.spec.Rails[rail].SwitchPort = strconv.Itoa(switchPort)
	return out
}
