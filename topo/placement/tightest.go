package placement

// target is a node, or a group if node is None.
type target struct{ node, group int32 }

// filter says which groups and nodes may hold the gang.
type filter struct {
	// inside are kinds of which one must be around; 0 is any.
	inside uint64
	// nodes asks for a node, kind for groups of a kind; -1 is any.
	nodes bool
	kind  int32
	// from is the lowest tier that will do; guests asks for room for these.
	from   int32
	guests bool
}

// find looks for the group that is to hold the gang: beside its members if
// there are any, else of the preferred kind, else the tightest.
func (p *planner) find(w part, f *filter) (target, bool) {
	t := p.tree
	if bit := t.bit(p.job.gang.Prefer); bit != 0 && f.from == 0 {
		preferred := *f
		for i := range t.kinds {
			if bit == 1<<i {
				preferred.kind = int32(i)
			}
		}
		if at, ok := p.tightest(0, w, &preferred); ok {
			return at, true
		}
	}
	return p.tightest(0, w, f)
}

// tightest is the group or node of the lowest tier inside g that holds a part.
// Of several it is the one that holds it in the fewest groups, then the one
// with the least room, then the one with the least room around it, then the
// first. Without a filter g holds it, and there is
// always an answer. If g has members, it is the lowest of the groups that hold
// all of them.
func (p *planner) tightest(g int32, w part, f *filter) (target, bool) {
	if p.held[g] > 0 {
		return p.near(g, w, f)
	}
	if f == nil || f.kind < 0 && f.from == 0 {
		if node := p.tightestNode(g, w, f); node >= 0 {
			return target{node, p.tree.home[node]}, true
		}
	}
	if f != nil && f.nodes {
		return target{None, None}, false
	}
	best := p.tightestGroup(g, w, f)
	return target{None, best}, best >= 0
}

func (p *planner) tightestNode(g int32, w part, f *filter) int32 {
	t, pods := p.tree, p.total(w)
	best, least := None, int32(0)
	for node := t.groups[g].first; node < t.groups[g].last; node++ {
		n := p.fit[node]
		if int64(n) < pods || best >= 0 && n > least {
			continue
		}
		home := t.home[node]
		if best >= 0 && n == least && !p.fuller(node, best) {
			continue
		}
		if f != nil && (!p.allows(f, target{node, home}) || !p.sparesNode(node, w, f)) {
			continue
		}
		best, least = node, n
	}
	return best
}

// fuller tells whether node a, which takes as many pods as b, has less free or,
// if that is the same, less room around it.
func (p *planner) fuller(a, b int32) bool {
	if free := p.job.room.Free; free != nil && free[a] != free[b] {
		return free[a] < free[b]
	}
	return p.closer(p.tree.home[a], p.tree.home[b])
}

func (p *planner) tightestGroup(g int32, w part, f *filter) int32 {
	t, best, parts := p.tree, None, 0
	for i := g; i < t.groups[g].end; i++ {
		if !p.holds(i, w) || t.groups[i].own && i != g || best >= 0 && t.groups[i].tier > t.groups[best].tier {
			continue
		}
		if f != nil && (!p.allows(f, target{None, i}) || !p.spares(i, w, f)) {
			continue
		}
		if best < 0 || t.groups[i].tier < t.groups[best].tier {
			best, parts = i, 0
			continue
		}
		if parts == 0 {
			parts = p.parts(best, w)
		}
		if n := p.parts(i, w); n < parts || n == parts && p.closer(i, best) {
			best, parts = i, n
		}
	}
	return best
}

// parts is how many of the groups right inside one hold a part; 1 if there are
// none.
func (p *planner) parts(g int32, w part) int {
	if p.tree.groups[g].lowest {
		return 1
	}
	p.children(g, false)
	return p.groups.fewest(w.blocks, w.short > 0)
}

// closer tells whether group a has less room than b or, if they have the same,
// has less around it.
func (p *planner) closer(a, b int32) bool {
	for a != b {
		if p.pods[a] != p.pods[b] {
			return p.pods[a] < p.pods[b]
		}
		a, b = p.tree.groups[a].parent, p.tree.groups[b].parent
		if a < 0 || b < 0 {
			return false
		}
	}
	return false
}

// allows tells whether a filter lets a group or a node through.
func (p *planner) allows(f *filter, at target) bool {
	g := &p.tree.groups[at.group]
	switch {
	case f.inside != 0 && g.inside&f.inside == 0,
		at.node < 0 && (f.nodes || f.kind >= 0 && g.kind != f.kind || g.tier < f.from),
		at.node >= 0 && (f.kind >= 0 || f.from > 0):
		return false
	}
	return !f.guests || p.welcomes(at)
}

// common is the lowest group inside g that holds all members there, or the
// node.
func (p *planner) common(g int32) target {
	t := p.tree
	for !t.groups[g].lowest {
		next := None
		for c := g + 1; c < t.groups[g].end; c = t.groups[c].end {
			if p.held[c] == p.held[g] {
				next = c
			}
		}
		if next < 0 {
			return target{None, g}
		}
		g = next
	}
	for node := t.groups[g].first; node < t.groups[g].last; node++ {
		if p.mates[node] == p.held[g] {
			return target{node, g}
		}
	}
	return target{None, g}
}

// near is the lowest group inside g that holds a part beside all members.
func (p *planner) near(g int32, w part, f *filter) (target, bool) {
	at := p.common(g)
	if at.node >= 0 && int64(p.fit[at.node]) >= p.total(w) && (f == nil || p.allows(f, at)) {
		return at, true
	}
	at.node = None
	for {
		own := p.tree.groups[at.group].own && at.group != g
		if !own && p.holds(at.group, w) && (f == nil || p.allows(f, at) && p.spares(at.group, w, f)) {
			return at, true
		}
		if at.group == g {
			return at, false
		}
		at.group = p.tree.groups[at.group].parent
	}
}
