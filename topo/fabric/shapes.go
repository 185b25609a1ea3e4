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
}

// hasGPUs reports whether nodes of the shape have accelerators.
func (s *shape) hasGPUs() bool { return s.accelerators != "" }

// compare orders shapes, always alike.
func (s *shape) compare(o *shape) int {
	return cmp.Or(cmp.Compare(s.accelerators, o.accelerators), slices.Compare(s.positions, o.positions))
}

// shape returns the shape of a node with these accelerators and sorted ports.
func (s *symbols) shape(accelerators string, ports []port) *shape {
	key := append(make([]byte, 0, len(accelerators)+2*maxPorts), accelerators...)
	for i := range ports {
		if at := ports[i].position(); i == 0 || at != ports[i-1].position() {
			key = append(key, byte(at>>8), byte(at)) //nolint:gosec // Below maxRail * maxPlane.
		}
	}
	if known := s.shapes[string(key)]; known != nil {
		return known
	}
	out := &shape{accelerators: accelerators}
	for i := range ports {
		at, last := ports[i].position(), len(out.positions)-1
		if last >= 0 && out.positions[last] == at {
			continue
		}
		if last < 0 || out.positions[last]/maxPlane != at/maxPlane {
			out.rails++
		}
		out.positions = append(out.positions, at)
	}
	s.shapes[string(key)] = out
	return out
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

// wholes decides which shapes are whole, by the number of nodes that report each.
func wholes(nodes map[*shape]int) map[*shape]whole {
	byHardware := map[string][]*shape{}
	for s := range nodes {
		byHardware[s.accelerators] = append(byHardware[s.accelerators], s)
	}
	out := make(map[*shape]whole, len(nodes))
	for _, list := range byHardware {
		slices.SortFunc(list, func(a, b *shape) int { return cmp.Or(cmp.Compare(nodes[b], nodes[a]), a.compare(b)) })
		candidates := list[:min(len(list), wholeShapes)]
		for _, s := range list {
			w := whole{shape: s}
			if i := slices.IndexFunc(candidates, func(o *shape) bool { return s.lacksOf(o, nodes[s], nodes[o]) }); i >= 0 {
				w.shape = candidates[i]
			}
			w.expects = s.hasGPUs() && nodes[w.shape] > few
			out[s] = w
		}
	}
	return out
}

// lacksOf reports whether nodes of a shape are rather nodes of another one that
// lost HCAs: not half of them, or one, and too few nodes to be a model of their
// own. By loss alone fewer than one in four nodes lack an HCA, fewer than one in
// sixteen the same two.
func (s *shape) lacksOf(o *shape, nodes, others int) bool {
	lost := max(o.rails-s.rails, 1)
	if others <= few || len(s.positions) >= len(o.positions) || lost > 1 && 2*s.rails <= o.rails {
		return false
	}
	if nodes > few && (lost > 8 || nodes<<(2*lost) >= others) {
		return false
	}
	for i, j := 0, 0; i < len(s.positions); j++ {
		if j == len(o.positions) || o.positions[j] > s.positions[i] {
			return false
		}
		if o.positions[j] == s.positions[i] {
			i++
		}
	}
	return true
}
