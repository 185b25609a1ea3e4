// Package fabrics makes fabrics out of a few numbers, as the reports of their
// nodes: fat trees with and without rails, several planes, racks of NVLink
// domains, dragonflies in switchboxes, irregular groups. It knows for every
// port where its cable belongs, and breaks cables at random. It decides
// nothing about groups: tests do.
package fabrics

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Plan describes a fabric.
type Plan struct {
	// Sizes are the nodes of each leaf group.
	Sizes []int
	// Rails are the HCAs of a node, Planes the ports of an HCA (0 is 1).
	Rails, Planes int
	// Rack connects all of a group's ports to one leaf instead of a leaf for
	// each rail and plane.
	Rack bool
	// PerLeaf is how many rails share a leaf, 0 is 1.
	PerLeaf int
	// In each run of Of nodes the first Half have half of the HCAs, on every second
	// rail's leaf, and the next CPU have no GPU and one HCA, on the first leaf.
	Half, CPU, Of int
	// Aside gives the nodes without GPUs a second HCA, on a leaf of their own.
	Aside bool
	// Odd makes every n-th node differ from the others, in turn by 7 GPUs, no GPU, another
	// product, a ninth HCA and a product of its own.
	Odd int
	// Wide connects two groups to the same leaves by the rails from Wide on. Shift connects the first
	// nodes of each group to the group before by even rails.
	Wide, Shift int
	// Short is a group built without the last HCA, counted from 1.
	Short int
	// Domain is the nodes of an NVLink domain, 0 for none; groups are whole
	// domains.
	Domain int
	// Pod is the leaf groups that share spines, 0 for no uplinks in the
	// reports; Spines how many spines each leaf has (0 is 8).
	Pod, Spines int
	// Dragonfly is the nodes of a dragonfly and Switchbox the dragonflies of
	// a switchbox, given as paths; 0 for none.
	Dragonfly, Switchbox int
	// Storage adds as many storage HCAs, all on two leaves that the whole
	// fabric shares.
	Storage int
}

// Even is the sizes of groups of per nodes, the last smaller.
func Even(nodes, per int) []int {
	var out []int
	for ; nodes > 0; nodes -= per {
		out = append(out, min(nodes, per))
	}
	return out
}

// Irregular is the sizes of one real cluster's 15 leaf groups.
func Irregular() []int { return []int{1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 6, 6, 6, 8, 11} }

// Fabric is a fabric's nodes, in the order of their names.
type Fabric struct {
	Plan  Plan
	Nodes []Node
	index map[string]int
}

// Find returns the node with that name, nil if there is none.
func (f *Fabric) Find(name string) *Node {
	if i, ok := f.index[name]; ok {
		return &f.Nodes[i]
	}
	return nil
}

// Node is a node's report, and the truth about it.
type Node struct {
	Name string
	Spec v1alpha1.NodeTopologySpec
	// Group is the number of its leaf group.
	Group int
	// Cables are where its fabric ports belong, by rail and plane; none where any
	// leaf is right.
	Cables []Cable
	// CPU is set for a node without GPUs by plan, Odd for one of another kind than others.
	CPU, Odd bool
}

// Cable is where a port belongs.
type Cable struct {
	Rail, Plane int32
	Leaf        string
}

// New makes a fabric without faults.
func New(p Plan) *Fabric {
	p.Planes, p.Spines, p.PerLeaf, p.Of = max(p.Planes, 1), max(p.Spines, 1), max(p.PerLeaf, 1), max(p.Of, 1)
	f := &Fabric{Plan: p, index: map[string]int{}}
	for group, size := range p.Sizes {
		for i := range size {
			f.index[fmt.Sprintf("node%06d", len(f.Nodes))] = len(f.Nodes)
			f.Nodes = append(f.Nodes, f.node(len(f.Nodes), group, i))
		}
	}
	if p.Pod > 0 {
		f.reportUplinks()
	}
	return f
}

func (f *Fabric) node(number, group, place int) Node {
	p := &f.Plan
	n := Node{Name: fmt.Sprintf("node%06d", number), Group: group}
	n.Spec.Accelerators = []v1alpha1.Accelerator{{Product: "NVIDIA-H100-80GB-HBM3", Count: 8}}
	rails, step := p.Rails, 1
	switch at := place % p.Of; {
	case at < p.Half:
		rails, step = p.Rails/2, 2
	case at < p.Half+p.CPU:
		n = f.cpu(number, group, f.Leaf(group, 0, 0))
		if n.CPU = true; !p.Aside {
			n.Cables = []Cable{{Leaf: f.Leaf(group, 0, 0).ID}}
		} else {
			n.Group = NoGroup
			aside := v1alpha1.Switch{ID: fmt.Sprintf("0000d2%010x", group), Name: fmt.Sprintf("aside-g%d", group)}
			n.Spec.Rails = append(n.Spec.Rails, fabricPort(number, 1, 0, aside, place+1))
		}
		return n
	}
	if group+1 == p.Short {
		rails--
	}
	if place < p.Shift {
		n.Group = NoGroup
	}
	for rail := range rails {
		to := p.other(group, place, rail*step)
		for plane := range p.Planes {
			leaf := f.Leaf(to, rail*step, plane)
			port := place*p.PerLeaf + rail%p.PerLeaf + 1
			if p.Rack {
				port = place*p.Rails*p.Planes + rail*p.Planes + plane + 1
			}
			n.Spec.Rails = append(n.Spec.Rails, fabricPort(number, rail, plane, leaf, port))
			n.Cables = append(n.Cables, Cable{int32(rail), int32(plane), leaf.ID})
		}
	}
	if p.Odd > 0 && number%p.Odd == p.Odd/2 {
		f.odd(&n, number)
	}
	for i := range p.Storage {
		n.Spec.Rails = append(n.Spec.Rails, v1alpha1.Rail{
			Rail: int32(i), HCA: fmt.Sprintf("mlx5_s%d", i), Port: 1, ID: fmt.Sprintf("0000:%02x:00.0", 0xd0+i),
			Role: "storage", LinkState: v1alpha1.LinkActive, Confidence: 100,
			Switch: &v1alpha1.Switch{ID: fmt.Sprintf("5707a6e0000000%02x", i)}, Source: v1alpha1.SourceIB,
		})
	}
	if p.Domain > 0 {
		n.Spec.NVLinkDomain = fmt.Sprintf("7c1ab8a2-0b4d-4f6e-9d53-%012x.%d", number/p.Domain, 1)
	}
	if p.Dragonfly > 0 {
		fly := number / p.Dragonfly
		n.Spec.Path = []string{fmt.Sprintf("switchbox-%d", fly/max(p.Switchbox, 1)), fmt.Sprintf("dragonfly-%d", fly)}
		n.Spec.PathSource = v1alpha1.SourceClusterManager
	}
	return n
}

// other is the group on whose leaf a rail is.
func (p *Plan) other(group, place, rail int) int {
	switch {
	case p.Wide > 0 && rail >= p.Wide:
		return group - group%2
	case place < p.Shift && rail%2 == 0:
		return max(group-1, 0)
	default:
		return group
	}
}

// odd makes a node differ.
func (f *Fabric) odd(n *Node, number int) {
	a := &n.Spec.Accelerators[0]
	n.Odd = true
	switch kind := number / f.Plan.Odd % 5; {
	case kind == 0:
		a.Count--
		n.Odd = false // Fewer GPUs of the same kind.
	case kind == 1:
		n.Spec.Accelerators = nil
	case kind == 2:
		a.Product = "NVIDIA-H200"
	case kind == 3 && len(n.Cables) == f.Plan.Rails*f.Plan.Planes:
		leaf := n.Spec.Rails[1].Switch // Any of the group is right.
		n.Spec.Rails = append(n.Spec.Rails, fabricPort(number, f.Plan.Rails, 0, *leaf, 60))
	default:
		a.Product = fmt.Sprintf("NVIDIA-X%d", number)
	}
}

// fabricPort is an active port of the compute fabric.
func fabricPort(node, rail, plane int, leaf v1alpha1.Switch, port int) v1alpha1.Rail {
	return v1alpha1.Rail{
		Rail: int32(rail), Plane: int32(plane), HCA: fmt.Sprintf("mlx5_%d", rail), Port: int32(plane + 1),
		ID:   fmt.Sprintf("0000:%02x:00.0", 0x18+8*rail),
		GUID: fmt.Sprintf("%04x:%04x:%04x:%04x", 0x946d, 0xae03, node, rail),
		Role: "fabric", LinkState: v1alpha1.LinkActive, RateGbps: 400, LinkLayer: "InfiniBand",
		Switch: &leaf, SwitchPort: fmt.Sprint(port), Source: v1alpha1.SourceIB, Confidence: 100,
	}
}

// Leaf is where the cables of a group belong.
func (f *Fabric) Leaf(group, rail, plane int) v1alpha1.Switch {
	if f.Plan.Rack {
		return v1alpha1.Switch{ID: fmt.Sprintf("b83fd2%010x", group<<8), Name: fmt.Sprintf("leaf-g%d", group)}
	}
	rail -= rail % f.Plan.PerLeaf
	// The numbers of a group's leaves have nothing to do with their order.
	id := group<<8 | (rail*f.Plan.Planes+plane)*37%256
	return v1alpha1.Switch{
		ID:   fmt.Sprintf("b83fd2%010x", id),
		Name: fmt.Sprintf("leaf-g%d-rail%d-plane%d", group, rail, plane),
	}
}

// reportUplinks lets the first node of every group report the uplinks of its leaves.
func (f *Fabric) reportUplinks() {
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if i > 0 && f.Nodes[i-1].Group == n.Group {
			continue
		}
		seen := map[string]bool{}
		for _, r := range n.Spec.Rails {
			if r.Role != "fabric" || seen[r.Switch.ID] {
				continue
			}
			seen[r.Switch.ID] = true
			for s := range f.Plan.Spines {
				spine := n.Group/f.Plan.Pod<<16 | int(r.Rail)<<8 | s
				n.Spec.Uplinks = append(n.Spec.Uplinks, v1alpha1.Uplink{
					Leaf: r.Switch.ID, Port: int32(33 + s),
					Peer: fmt.Sprintf("5b1e%012x", spine), PeerName: fmt.Sprintf("spine-%x", spine), PeerPort: 1,
				})
			}
		}
	}
}
