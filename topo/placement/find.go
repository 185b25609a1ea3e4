package placement

// target is a node, or a group if node is None.
type target struct{ node, group int32 }

// tier is 0 for a node.
func (t *Tree) tier(at target) int32 {
	if at.node >= 0 {
		return 0
	}
	return t.groups[at.group].tier
}

// span is the nodes of a target: from first up to last, without it.
func (t *Tree) span(at target) (first, last int32) {
	if at.node >= 0 {
		return at.node, at.node + 1
	}
	return t.groups[at.group].first, t.groups[at.group].last
}

// filter selects the targets that may hold the gang; the zero value selects
// all.
type filter struct {
	// around are kinds of which one must be around; 0 is any.
	around uint64
	// nodes selects nodes, and kind groups of a kind; 0 is any.
	nodes bool
	kind  uint64
	// tier is the lowest that will do.
	tier int32
	// beside are secondary tasks for which the target must have room as well.
	beside *secondary
}

func (f *filter) allows(t *Tree, at target) bool {
	g := &t.groups[at.group]
	switch {
	case f.around != 0 && g.around&f.around == 0:
		return false
	case at.node >= 0 && (f.kind != 0 || f.tier > 0):
		return false
	case at.node < 0 && (f.nodes || f.kind != 0 && (g.kind < 0 || f.kind != 1<<g.kind) || g.tier < f.tier):
		return false
	}
	return f.beside == nil || f.beside.admits(at)
}

// finder looks for the target that is to hold an amount.
type finder struct {
	*room
	prefer uint64
	groups picker
}

// find is the target for the gang: beside its members if there are any, else of
// the preferred kind, else the tightest.
func (s *finder) find(a amount, f *filter) (target, bool) {
	if s.prefer != 0 && f.tier == 0 {
		preferred := *f
		preferred.kind = s.prefer
		if at, ok := s.tightest(0, a, &preferred); ok {
			return at, true
		}
	}
	return s.tightest(0, a, f)
}

// tightest is the group or node of the lowest tier inside g that holds an
// amount. Of several it is the one that holds it in the fewest groups, then the
// one with the least room, then the one with the least room around it, then the
// first. If g holds the amount there is always one without a filter. If g has
// members, it is the lowest of the groups that hold all of them.
func (s *finder) tightest(g int32, a amount, f *filter) (target, bool) {
	if s.placedIn[g] > 0 {
		return s.besideMembers(g, a, f)
	}
	if f.kind == 0 && f.tier == 0 {
		if node := s.tightestNode(g, a, f); node >= 0 {
			return target{node, s.tree.home[node]}, true
		}
	}
	best := target{None, None}
	if !f.nodes {
		best.group = s.tightestGroup(g, a, f)
	}
	return best, best.group >= 0
}

func (s *finder) tightestNode(g int32, a amount, f *filter) int32 {
	t, pods := s.tree, s.total(a)
	best, least := None, int32(0)
	for node := t.groups[g].first; node < t.groups[g].last; node++ {
		n := s.fit[node]
		if int64(n) < pods || best >= 0 && (n > least || n == least && !s.fuller(node, best)) {
			continue
		}
		at := target{node, t.home[node]}
		if f.allows(t, at) && f.beside.holdsBeside(at, a) {
			best, least = node, n
		}
	}
	return best
}

func (s *finder) tightestGroup(g int32, a amount, f *filter) int32 {
	groups, best, parts := s.tree.groups, None, 0
	for i := g; i < groups[g].next; i++ {
		at := target{None, i}
		if !s.holds(at, a) || groups[i].remainder && i != g || best >= 0 && groups[i].tier > groups[best].tier {
			continue
		}
		if !f.allows(s.tree, at) || !f.beside.holdsBeside(at, a) {
			continue
		}
		if best < 0 || groups[i].tier < groups[best].tier {
			best, parts = i, 0
			continue
		}
		if parts == 0 {
			parts = s.parts(best, a)
		}
		if n := s.parts(i, a); n < parts || n == parts && s.fullerGroup(i, best) {
			best, parts = i, n
		}
	}
	return best
}

// parts is how many of the groups right inside one hold an amount; 1 if there
// are none.
func (s *finder) parts(g int32, a amount) int {
	if s.tree.groups[g].lowest {
		return 1
	}
	s.groups.items = s.children(s.groups.items[:0], g, false)
	return s.groups.fewest(a)
}

// besideMembers is the lowest group inside g that holds an amount and all
// members.
func (s *finder) besideMembers(g int32, a amount, f *filter) (target, bool) {
	groups, at := s.tree.groups, s.members(g)
	if at.node >= 0 && s.holds(at, a) && f.allows(s.tree, at) {
		return at, true
	}
	at.node = None
	for {
		remainder := groups[at.group].remainder && at.group != g
		if !remainder && s.holds(at, a) && f.allows(s.tree, at) && f.beside.holdsBeside(at, a) {
			return at, true
		}
		if at.group == g {
			return at, false
		}
		at.group = groups[at.group].parent
	}
}

// members is the lowest group inside g that has all members of g, or the node.
func (s *finder) members(g int32) target {
	t, first, last := s.tree, None, None
	for node := t.groups[g].first; node < t.groups[g].last; node++ {
		if s.placed[node] == 0 {
			continue
		}
		if last = node; first < 0 {
			first = node
		}
	}
	if first == last {
		return target{first, t.home[first]}
	}
	return target{None, t.common(first, last)}
}
