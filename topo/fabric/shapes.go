package fabric

import (
	"cmp"
	"slices"
)

// shape describes nodes that are cabled alike: products of accelerators, and fabric ports by rail and plane. Equal
// shapes are one.
type shape struct {
	accelerators string
	// positions holds the positions of the ports, sorted, each once; rails counts the rails among them.
	positions []int32
	rails     int
	// last is the last position, -1 without any. Rails have no gaps: one before it shows that an HCA fell off the bus.
	last int32
	// nodes counts the nodes that report the shape, dark by position those that never had a link there.
	nodes int
	dark  []int
	facts
}

// facts holds what the fleet shows about a shape.
type facts struct {
	// wholes are the shapes that nodes of this one may have had, before they lost HCAs.
	wholes []whole
	// unused has by position if most nodes never had a link there.
	unused []bool
}

// whole is a shape with more HCAs than another one. gap is set if all that that one lacks are before its last, lost
// also if so few nodes have it that they lost HCAs.
type whole struct {
	*shape
	gap, lost bool
}

// hasGPUs reports whether nodes of the shape have accelerators.
func (s *shape) hasGPUs() bool { return s.accelerators != "" }

// compare orders shapes, always alike.
func (s *shape) compare(o *shape) int {
	return cmp.Or(cmp.Compare(s.accelerators, o.accelerators), slices.Compare(s.positions, o.positions))
}

// enter counts a node with these sorted ports.
func (s *shape) enter(ports []port, by int) {
	s.nodes += by
	for i := range ports {
		if p := &ports[i]; p.neverUp() && (i == 0 || ports[i-1].position != p.position) {
			at, _ := slices.BinarySearch(s.positions, p.position)
			s.dark[at] += by
		}
	}
}

// few is the number of nodes that show nothing: of two that contradict each other either may be right. What three nodes
// have alike is a pattern.
const few = 2

// wholeShapes bounds how many shapes of equal accelerators others are compared with.
const wholeShapes = 32

// compareShapes finds out what the fleet shows about each shape, and whether that changed.
func compareShapes(shapes map[string]*shape, nodes []*node, votes *grouping) (changed bool) {
	byHardware := map[string][]*shape{}
	for _, s := range shapes {
		if s.nodes > 0 {
			byHardware[s.accelerators] = append(byHardware[s.accelerators], s)
		}
	}
	for _, list := range byHardware {
		slices.SortFunc(list, func(a, b *shape) int { // Parts after their wholes.
			return cmp.Or(cmp.Compare(len(b.positions), len(a.positions)), cmp.Compare(b.nodes, a.nodes), a.compare(b))
		})
		for _, s := range list {
			var f facts
			for _, o := range list[:min(len(list), wholeShapes)] {
				if gap := s.last == o.last; s.isPartOf(o) && (gap || o.nodes > few) {
					f.wholes = append(f.wholes, whole{o, gap, gap || isLoss(s.nodes, o.nodes, o.rails-s.rails)})
				}
			}
			for i := range s.dark {
				f.unused = append(f.unused, s.isDark(i, nodes, votes))
			}
			changed = changed || !slices.Equal(s.wholes, f.wholes) || !slices.Equal(s.unused, f.unused)
			s.facts = f
		}
	}
	return changed
}

// isDark reports whether most nodes of a shape never had a link at a port, and in more groups most of them than in
// others: a leaf that was dead from the start is not by plan.
func (s *shape) isDark(at int, nodes []*node, votes *grouping) bool {
	groups, more := map[int32]int{}, 0
	if 2*s.dark[at] <= s.nodes || s.dark[at] == s.nodes {
		return s.dark[at] == s.nodes
	}
	isDark := func(p port) bool { return p.position == s.positions[at] && p.neverUp() }
	for _, n := range nodes {
		switch group := votes.group[n.ends]; {
		case n.links.shape != s:
		case slices.ContainsFunc(n.links.ports, isDark):
			groups[group]++
		default:
			groups[group]--
		}
	}
	for _, n := range groups {
		more += cmp.Compare(n, 0)
	}
	return more > 0
}

// isPartOf reports whether nodes of a shape may be nodes of another one that lost HCAs: one, or less than half of them.
func (s *shape) isPartOf(o *shape) bool {
	if !s.hasGPUs() || s.accelerators != o.accelerators ||
		len(s.positions) >= len(o.positions) || o.rails-s.rails > 1 && 2*s.rails <= o.rails {
		return false
	}
	for _, at := range s.positions {
		if _, found := slices.BinarySearch(o.positions, at); !found {
			return false
		}
	}
	return true
}

// isLoss reports whether so few nodes lack HCAs that others have that they lost them. One in eight would be a model
// without one HCA, one in sixteen a model without two.
func isLoss(without, with, lost int) bool {
	if without <= few {
		return with > few && with > 2*without
	}
	return lost <= 8 && without<<(max(lost, 1)+2) < with
}
