package fabric

import (
	"cmp"
	"slices"
	"strings"
)

// shape is what nodes have in common that are cabled alike: accelerators, and
// fabric ports by rail and plane.
type shape struct {
	accelerators string
	// positions are those of the ports, sorted, each once; rails counts the rails
	// among them.
	positions []int32
	rails     int
	// nodes counts those that report exactly this.
	nodes int
	// whole is the shape that the nodes have with all their HCAs: this one, unless
	// they are taken for nodes that lost some.
	whole *shape
	// expects is set if other nodes show where the cables of this one belong.
	expects bool
}

// few is how many nodes of a shape, or less, show nothing: of two that
// contradict each other either may be right.
const few = 2

// shapes are all shapes of a fleet.
type shapes struct {
	all map[string]*shape
	// last is the one asked for last: nodes of one model come one after the other.
	last *shape
	// changed are the accelerators of which shapes have other numbers of nodes.
	changed set[string]
}

// count counts a node with one shape more in place of another, nil for none.
func (s *shapes) count(now, was *shape) {
	if now == was {
		return
	}
	if was != nil {
		was.nodes--
		s.changed.add(was.accelerators)
	}
	if now != nil {
		now.nodes++
		s.changed.add(now.accelerators)
	}
}

// is reports whether a node with such ports has the shape.
func (s *shape) is(accelerators string, ports []port) bool {
	i := 0
	for j := range ports {
		at := ports[j].position()
		if i > 0 && s.positions[i-1] == at {
			continue
		}
		if i == len(s.positions) || s.positions[i] != at {
			return false
		}
		i++
	}
	return i == len(s.positions) && s.accelerators == accelerators
}

// of is the shape of a node with these accelerators and ports, sorted.
func (s *shapes) of(accelerators string, ports []port) *shape {
	if s.last != nil && s.last.is(accelerators, ports) {
		return s.last
	}
	now := &shape{accelerators: accelerators}
	for i := range ports {
		at := ports[i].position()
		last := len(now.positions) - 1
		if last >= 0 && now.positions[last] == at {
			continue
		}
		if last < 0 || now.positions[last]/maxPlane != at/maxPlane {
			now.rails++
		}
		now.positions = append(now.positions, at)
	}
	key := now.key()
	if s.all[key] == nil {
		s.all[key] = now
	}
	s.last = s.all[key]
	return s.last
}

func (s *shape) key() string {
	var key strings.Builder
	key.WriteString(s.accelerators)
	for _, at := range s.positions {
		key.WriteByte(byte(at >> 8)) //nolint:gosec // Below maxRail * maxPlane.
		key.WriteByte(byte(at))      //nolint:gosec // The lower half.
	}
	return key.String()
}

// compare orders shapes, always alike.
func (s *shape) compare(o *shape) int {
	return cmp.Or(cmp.Compare(s.accelerators, o.accelerators), slices.Compare(s.positions, o.positions))
}

// wholes bounds how many shapes of equal accelerators others are compared with.
const wholes = 32

// regard decides again which shapes are whole, after their numbers of nodes
// changed. It returns those about which it changed its mind.
func (s *shapes) regard() set[*shape] {
	turned := set[*shape]{}
	if len(s.changed) == 0 {
		return turned
	}
	byHardware := map[string][]*shape{}
	for key, one := range s.all {
		if _, ok := s.changed[one.accelerators]; !ok {
			continue
		}
		if one.nodes == 0 {
			delete(s.all, key)
			continue
		}
		byHardware[one.accelerators] = append(byHardware[one.accelerators], one)
	}
	for _, list := range byHardware {
		slices.SortFunc(list, func(a, b *shape) int { return cmp.Or(cmp.Compare(b.nodes, a.nodes), a.compare(b)) })
		candidates := slices.Clone(list[:min(len(list), wholes)])
		for _, one := range list {
			whole := one
			if i := slices.IndexFunc(candidates, one.lacksOf); i >= 0 {
				whole = candidates[i]
			}
			expects := one.accelerators != "" && whole.nodes > few
			if whole != one.whole || expects != one.expects {
				one.whole, one.expects = whole, expects
				turned.add(one)
			}
		}
	}
	s.last = nil
	clear(s.changed)
	return turned
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
