package placement

// filter selects the targets that may hold the gang; the zero value selects
// all.
type filter struct {
	// around are kinds of which one must be around; 0 is any.
	around uint64
	// nodes selects nodes, and kind groups of a kind; 0 is any.
	nodes bool
	kind  uint64
	// tier is the lowest that will do.
	tier int
	// beside are secondary tasks for which the target must have room as well.
	beside *secondary
}

// accepts is true if a target holds an amount and may hold the gang.
func (s *finder) accepts(at target, a amount, f *filter) bool {
	g := &s.tree.groups[at.group]
	switch {
	case !s.holds(at, a) || f.around != 0 && g.around&f.around == 0:
		return false
	case at.node < 0 && (f.nodes || f.kind != 0 && (g.kind < 0 || f.kind != 1<<g.kind) || g.Tier < f.tier):
		return false
	}
	return f.beside == nil || f.beside.admits(at, a)
}

// finder looks for the target that is to hold an amount.
type finder struct {
	room
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
// amount and all members in g. Of several it is the one that holds it in the
// fewest groups, then the one with the least room, then the one with the least
// room around it, then the first. If g holds the amount there is always one
// without a filter.
func (s *finder) tightest(g int32, a amount, f *filter) (target, bool) {
	if f.kind == 0 && f.tier == 0 {
		in := &s.tree.groups[g]
		if node := s.tightestNode(in.First, in.End, s.placedIn[g], a, f); node >= 0 {
			return target{node, s.tree.home[node]}, true
		}
	}
	best := s.tightestGroup(g, a, f)
	return target{None, best}, best >= 0
}

func (s *finder) tightestNode(first, last, members int32, a amount, f *filter) int32 {
	pods := s.total(a)
	best, least := None, int32(0)
	for node := first; node < last; node++ {
		n := s.fit[node]
		if int64(n) < pods || best >= 0 && (n > least || n == least && !s.fuller(node, best)) {
			continue
		}
		if s.placed[node] >= members && s.accepts(target{node, s.tree.home[node]}, a, f) {
			best, least = node, n
		}
	}
	return best
}

func (s *finder) tightestGroup(g int32, a amount, f *filter) int32 {
	groups, best, parts := s.tree.groups, None, 0
	for i := g; i < groups[g].next; i++ {
		switch {
		case groups[i].remainder && i != g || best >= 0 && groups[i].Tier > groups[best].Tier:
			continue
		case s.placedIn[i] < s.placedIn[g] || !s.accepts(target{None, i}, a, f):
			continue
		case best < 0 || groups[i].Tier < groups[best].Tier:
			best, parts = i, 0
			continue
		case parts == 0:
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
