package fabrics

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// DeadPort takes one link down. Half of the times the report still knows the
// switch.
func (f *Fabric) DeadPort(rng *rand.Rand) {
	r := f.at(f.any(rng))
	r.LinkState = v1alpha1.LinkDown
	if rng.IntN(2) == 0 {
		r.Switch, r.SwitchPort, r.Source, r.Confidence = nil, "", "", 0
	}
}

// DeadLeaf makes the first leaf of the first group one that never had a link.
func (f *Fabric) DeadLeaf(*rand.Rand) {
	if 2*f.Plan.Sizes[0] > len(f.Nodes) || f.Plan.PerLeaf == f.Plan.Rails {
		return // Most nodes have it so, or these nodes have no other.
	}
	leaf := f.Leaf(0, 0, 0).ID
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for j := range n.Cables {
			if c := &n.Cables[j]; c.Leaf == leaf {
				r := n.port(*c)
				r.LinkState, r.Switch, r.SwitchPort, r.Source, r.Confidence = v1alpha1.LinkDown, nil, "", "", 0
				c.Leaf = "" // Nobody ever saw it.
			}
		}
	}
}

// MissingHCA takes an HCA away. Those behind it keep their rails.
func (f *Fabric) MissingHCA(rng *rand.Rand) {
	e := f.any(rng)
	n, lost := &f.Nodes[e.node], f.at(e).ID
	n.Spec.Rails = slices.DeleteFunc(n.Spec.Rails, func(r v1alpha1.Rail) bool { return r.ID == lost })
}

// WrongCable puts one cable into another leaf, of whichever group, if there is
// one.
func (f *Fabric) WrongCable(rng *rand.Rand) {
	leaves := f.leaves()
	r := f.at(f.any(rng))
	leaves = slices.DeleteFunc(leaves, func(s v1alpha1.Switch) bool { return s.ID == r.Switch.ID })
	if len(leaves) > 0 {
		r.Switch, r.SwitchPort = &leaves[rng.IntN(len(leaves))], "64"
	}
}

// AddCPU adds a node without GPUs and with one HCA, on a leaf of any group.
func (f *Fabric) AddCPU(rng *rand.Rand) {
	group, rail := rng.IntN(len(f.Plan.Sizes)), rng.IntN(f.Plan.Rails)
	if f.Plan.CPU > 0 { // As those that there are.
		rail = 0
	}
	leaf := f.Leaf(group, rail, 0)
	if f.Plan.Wide > 0 {
		group = NoGroup
	}
	f.add(f.cpu(len(f.Nodes), group, leaf))
}

// AddStorage adds a node without GPUs and with two HCAs, on leaves of any groups.
func (f *Fabric) AddStorage(rng *rand.Rand) {
	if f.Plan.Aside {
		return // It would be like the others.
	}
	leaves := f.leaves()
	n := f.cpu(len(f.Nodes), NoGroup, leaves[rng.IntN(len(leaves))])
	n.Spec.Rails = append(n.Spec.Rails, fabricPort(len(f.Nodes), 1, 0, leaves[rng.IntN(len(leaves))], 62))
	f.add(n)
}

// NoGroup is the group of a node that may be in any.
const NoGroup = -1

func (f *Fabric) add(n Node) {
	f.index[n.Name] = len(f.Nodes)
	f.Nodes = append(f.Nodes, n)
}

func (f *Fabric) cpu(number, group int, leaf v1alpha1.Switch) Node {
	n := Node{Name: fmt.Sprintf("node%06d", number), Group: group}
	n.Spec.Rails = []v1alpha1.Rail{fabricPort(number, 0, 0, leaf, 63)}
	return n
}

// any is a port that has a place where it belongs.
func (f *Fabric) any(rng *rand.Rand) end {
	ends := f.ends()
	return ends[rng.IntN(len(ends))]
}

func (f *Fabric) leaves() []v1alpha1.Switch {
	var out []v1alpha1.Switch
	for group := range f.Plan.Sizes {
		for rail := 0; rail < f.Plan.Rails; rail += f.Plan.PerLeaf {
			for plane := range f.Plan.Planes {
				out = append(out, f.Leaf(group, rail, plane))
			}
		}
	}
	return out
}
