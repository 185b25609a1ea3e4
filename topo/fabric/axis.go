package fabric

import "slices"

// Axis is along what nodes are grouped. Which GPUs are behind one NVLink switch
// and which ports behind one leaf are two facts: an NVL72 rack of 18 trays may
// stand across leaves of 32.
type Axis string

// The axes.
const (
	// AxisAuto has both as far as they are one tree: the fabric's groups, and in
	// them the NVLink domains that no group cuts.
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

// domains returns the NVLink domains with the nodes at any level below, and the nodes in none. Of
// domains with the same nodes, as block and nvlink may both be levels, it takes the first.
func (s *Snapshot) domains() (list []*Element) {
	in := map[*Element]bool{}
	add := func(e *Element) {
		nodes := e.nodes(nil)
		if in[nodes[0]] {
			return
		}
		for _, n := range nodes {
			in[n] = true
		}
		if !slices.Equal(e.Child, nodes) {
			slices.SortFunc(nodes, compareElements)
			e = e.with(nodes)
		}
		list = append(list, e)
	}
	for _, e := range s.Crossing {
		add(e)
	}
	for _, e := range s.All() {
		if e.NVLink {
			add(e)
		} else if len(e.Child) == 0 && !in[e] {
			list = append(list, e)
		}
	}
	return list
}

// nodes appends the nodes at or below an element.
func (e *Element) nodes(into []*Element) []*Element {
	if len(e.Child) == 0 {
		return append(into, e)
	}
	for _, c := range e.Child {
		into = c.nodes(into)
	}
	return into
}
