package fabric

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Axis is along what nodes are grouped. Which GPUs are behind one NVLink switch and which ports behind one leaf are two
// facts: an NVL72 rack of 18 trays may stand across leaves of 32.
type Axis string

// The axes.
const (
	// AxisAuto has both as far as they are one tree: the fabric's groups, and in them the NVLink domains that no group
	// cuts.
	AxisAuto Axis = "auto"
	// AxisFabric has no NVLink domains.
	AxisFabric Axis = "fabric"
	// AxisNVLink has nothing but NVLink domains, each whole.
	AxisNVLink Axis = "nvlink"
)

// Along returns the same nodes along an axis. It is s itself if that is alike.
func (s *Snapshot) Along(axis Axis) *Snapshot {
	switch axis {
	case AxisFabric:
		return s.next(dissolve(s.Child), s.Crossing)
	case AxisNVLink:
		list := s.domains()
		slices.SortFunc(list, compareElements)
		return s.next(list, s.Crossing)
	default:
		return s
	}
}

// dissolve puts the members of NVLink domains in their place.
func dissolve(list []*Element) []*Element {
	out := make([]*Element, 0, len(list))
	for _, e := range list {
		switch below := dissolve(e.Child); {
		case e.NVLink:
			out = append(out, below...)
		case slices.Equal(below, e.Child):
			out = append(out, e)
		default:
			out = append(out, e.with(below))
		}
	}
	slices.SortFunc(out, compareElements)
	return out
}

// with returns a group with other children.
func (e *Element) with(children []*Element) *Element {
	out := *e
	out.Child = children
	out.summarize()
	return &out
}

// domains returns the NVLink domains with the nodes at any level below, and the nodes in none. Of domains with the same
// nodes, as block and nvlink may both be levels, it takes the first.
func (s *Snapshot) domains() (list []*Element) {
	in := map[*Element]bool{}
	for _, e := range All(slices.Concat(s.Crossing, s.Child)) {
		if !e.NVLink {
			if e.Kind == v1alpha1.KindNode && !in[e] {
				list = append(list, e)
			}
			continue
		}
		var nodes []*Element
		for _, n := range All(e.Child) {
			if n.Kind == v1alpha1.KindNode && !in[n] {
				nodes, in[n] = append(nodes, n), true
			}
		}
		if len(nodes) == 0 {
			continue
		}
		if !slices.Equal(e.Child, nodes) {
			slices.SortFunc(nodes, compareElements)
			e = e.with(nodes)
		}
		list = append(list, e)
	}
	return list
}
