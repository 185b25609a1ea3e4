package fabric

import (
	"cmp"
	"slices"
)

// shape describes nodes that are cabled alike: accelerators, and
// fabric ports by rail and plane. Equal shapes are one.
type shape struct {
	accelerators string
	// positions holds the positions of the ports, sorted, each once; rails counts the rails among
	// them.
	positions []int32
	rails     int
	// nodes counts the nodes that report the shape.
	nodes int
	whole whole
}

// hasGPUs reports whether nodes of the shape have accelerators.
func (s *shape) hasGPUs() bool { return s.accelerators != "" }

// compare orders shapes, always alike.
func (s *shape) compare(o *shape) int {
	return cmp.Or(cmp.Compare(s.accelerators, o.accelerators), slices.Compare(s.positions, o.positions))
}

// few is the number of nodes of a shape that show nothing: of two that contradict
// each other either may be right.
const few = 2

// whole is the shape that nodes have with all their HCAs: their own, unless they are
// taken for nodes that lost some. expects is set if other nodes show where the cables
// of this shape belong.
type whole struct {
	*shape
	expects bool
}

// wholeShapes bounds how many shapes of equal accelerators others are compared with.
const wholeShapes = 32

// complete decides which shapes are whole, by the number of nodes that report each.
func complete(shapes map[string]*shape) {
	byHardware := map[string][]*shape{}
	for _, s := range shapes {
		if s.nodes > 0 {
			byHardware[s.accelerators] = append(byHardware[s.accelerators], s)
		}
	}
	for _, list := range byHardware {
		slices.SortFunc(list, func(a, b *shape) int { return cmp.Or(cmp.Compare(b.nodes, a.nodes), a.compare(b)) })
		candidates := list[:min(len(list), wholeShapes)]
		for _, s := range list {
			w := whole{shape: s}
			if i := slices.IndexFunc(candidates, s.lacksOf); i >= 0 {
				w.shape = candidates[i]
			}
			w.expects = s.hasGPUs() && w.nodes > few
			s.whole = w
		}
	}
}

// lacksOf reports whether nodes of a shape are rather nodes of another one that
// lost HCAs: not half of them, or one, and too few nodes to be a model of their
// own. By loss alone fewer than one in four nodes lack an HCA, fewer than one in
// sixteen the same two.
func (s *shape) lacksOf(o *shape) bool {
	lost := max(o.rails-s.rails, 1)
	if o.nodes <= few || len(s.positions) >= len(o.positions) || lost > 1 && 2*s.rails <= o.rails {
		return false
	}
	if s.nodes > few && (lost > 8 || s.nodes<<(2*lost) >= o.nodes) {
		return false
	}
	for _, at := range s.positions {
		if _, found := slices.BinarySearch(o.positions, at); !found {
			return false
		}
	}
	return true
}
