package placement

// put gives a target the leading pods that it holds.
func (p *planner) put(at target, w part) {
	if at.node >= 0 {
		p.putNode(at.node, w)
		return
	}
	p.within(at.group, w)
}

func (p *planner) putNode(node int32, w part) {
	p.take[node] += int32(p.total(w)) //nolint:gosec // At most what the node takes.
	if w.short > 0 {
		p.tail = node + 1
		if node < p.tree.grouped {
			p.tail = p.tree.groups[p.tree.home[node]].last
		}
	}
}

// within places a part that a group holds: in the tightest group inside or, if
// that is a group of groups, over the fewest of these. All of them but one are
// filled; what is left for that one is placed as a gang of its own.
func (p *planner) within(g int32, w part) {
	for w != (part{}) {
		at, _ := p.tightest(g, w, nil)
		switch {
		case at.node >= 0:
			p.putNode(at.node, w)
			return
		case p.tree.groups[at.group].lowest:
			p.spread(at.group, p.total(w))
			if w.short > 0 {
				p.tail = p.tree.groups[at.group].last
			}
			return
		}
		g, w = p.span(at.group, w)
	}
}

// span places a part over the fewest groups in g, which holds it and none of
// them does. Those with members count for nothing: they come first. It returns
// the group that is not filled and its part.
func (p *planner) span(g int32, w part) (int32, part) {
	if p.held[g] > 0 {
		p.children(g, true)
		if chosen := p.groups.pick(w.blocks, w.short > 0); len(chosen) > 0 {
			return p.settle(chosen, w)
		}
		if w = p.fillAll(w); w == (part{}) {
			return g, w
		}
	}
	p.children(g, false)
	return p.settle(p.groups.pick(w.blocks, w.short > 0), w)
}

// children collects the groups right inside g, with or without members.
func (p *planner) children(g int32, members bool) {
	t := p.tree
	p.groups.items = p.groups.items[:0]
	for c := g + 1; c < t.groups[g].end; c = t.groups[c].end {
		if members == (p.held[c] > 0) {
			p.groups.items = append(p.groups.items, item{id: c, slots: p.slots[c], room: p.pods[c], spare: p.spare[c]})
		}
	}
}

// settle fills all the chosen groups but one.
func (p *planner) settle(chosen []item, w part) (int32, part) {
	total := int64(0)
	for i := range chosen {
		total += chosen[i].slots
	}
	open := len(chosen) - 1
	if total < w.need() {
		// Only what blocks leave over in a group takes the shorter one.
		for !chosen[open].spare {
			open--
		}
	}
	for i := range chosen {
		if i != open {
			p.fill(chosen[i].id)
			w.blocks -= chosen[i].slots
		}
	}
	return chosen[open].id, w
}

// fillAll fills all the groups collected, which do not hold a part, and
// returns what is left of it.
func (p *planner) fillAll(w part) part {
	open := item{id: None}
	for _, c := range p.groups.items {
		if w.short > 0 && c.spare && open.id < 0 {
			open = c
			continue
		}
		p.fill(c.id)
		w.blocks -= c.slots
	}
	if open.id >= 0 {
		p.within(open.id, part{blocks: open.slots, short: w.short})
		w = part{blocks: w.blocks - open.slots}
	}
	return w
}

// fill gives a group all the blocks that it takes.
func (p *planner) fill(g int32) {
	t := p.tree
	if p.job.block == 1 {
		from, to := t.groups[g].first, t.groups[g].last
		copy(p.take[from:to], p.fit[from:to])
		return
	}
	for c := g; c < t.groups[g].end; c++ {
		if t.groups[c].lowest && p.slots[c] > 0 {
			p.spread(c, p.slots[c]*int64(p.job.block))
		}
	}
}

// spread puts pods on the fewest nodes of a lowest group that has room for
// them.
func (p *planner) spread(g int32, pods int64) {
	t := p.tree
	p.spreadNodes(t.groups[g].first, t.groups[g].last, pods)
}

func (p *planner) spreadNodes(first, last int32, pods int64) {
	mates := false
	for node := first; node < last; node++ {
		mates = mates || p.mates[node] > 0
	}
	if mates {
		if pods = p.spreadSome(first, last, pods, true); pods == 0 {
			return
		}
	}
	p.spreadSome(first, last, pods, false)
}

// spreadSome puts pods on nodes with members, or on the others, and returns
// those for which these have no room.
func (p *planner) spreadSome(first, last int32, pods int64, mates bool) int64 {
	p.nodes.items = p.nodes.items[:0]
	total := int64(0)
	for node := first; node < last; node++ {
		if n := int64(p.fit[node]); n > 0 && mates == (p.mates[node] > 0) {
			p.nodes.items = append(p.nodes.items, item{id: node, slots: n, room: p.left(node)})
			total += n
		}
	}
	chosen := p.nodes.items
	if total > pods {
		chosen = p.nodes.pick(pods, false)
	}
	for i := range chosen {
		n := min(pods, chosen[i].slots)
		p.take[chosen[i].id] = int32(n) //nolint:gosec // At most what the node takes.
		pods -= n
	}
	return pods
}

// left is how much a node has, to compare nodes that take as many pods.
func (p *planner) left(node int32) int64 {
	if free := p.job.room.Free; free != nil {
		return int64(free[node])
	}
	return int64(p.fit[node])
}

// outside places a part that the groups together do not hold: on one node in
// no group or, after the groups are full, on the fewest of these.
func (p *planner) outside(w part) bool {
	t := p.tree
	if p.bounds.inside != 0 {
		return false
	}
	best := None
	for node := t.grouped; int(node) < len(p.fit); node++ {
		n := p.fit[node]
		if int64(n) >= p.total(w) && (best < 0 || n < p.fit[best] || n == p.fit[best] && p.left(node) < p.left(best)) {
			best = node
		}
	}
	if best >= 0 {
		p.putNode(best, w)
		return true
	}
	return !p.bounds.nodes && p.overflow(w)
}

// overflow fills the groups and puts the rest on nodes in no group.
func (p *planner) overflow(w part) bool {
	t, block := p.tree, int64(p.job.block)
	in := part{blocks: min(w.blocks, p.slots[0])}
	if p.spare[0] {
		in.short = w.short
	}
	out := part{blocks: w.blocks - in.blocks, short: w.short - in.short}
	p.nodes.items = p.nodes.items[:0]
	for node := t.grouped; int(node) < len(p.fit); node++ {
		if n := int64(p.fit[node]); n > 0 {
			spare := out.short > 0 && n%block >= out.short && block > 1
			p.nodes.items = append(p.nodes.items, item{id: node, slots: n / block, room: p.left(node), spare: spare})
		}
	}
	chosen := p.nodes.pick(out.blocks, out.short > 0)
	if len(chosen) == 0 {
		return false
	}
	total, open := int64(0), len(chosen)-1
	for i := range chosen {
		total += chosen[i].slots
	}
	for total < out.need() && !chosen[open].spare {
		open--
	}
	for i := range chosen {
		if i != open {
			p.putNode(chosen[i].id, part{blocks: chosen[i].slots})
			out.blocks -= chosen[i].slots
		}
	}
	p.putNode(chosen[open].id, out)
	p.within(0, in) // It chooses nodes in the same memory.
	return true
}
