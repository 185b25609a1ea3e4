package placement

// packer puts pods on the nodes of the targets that the finder chose.
type packer struct {
	finder
	// take is how many primary pods each node gets, and tail one past the last
	// node of the lowest group that gets the shorter block.
	take []int32
	tail int32
	// fixed are members of this plan that take does not count: they go where
	// placed members of their block are.
	fixed []Member
	nodes picker
}

// put gives a target an amount that it holds.
func (p *packer) put(at target, a amount) {
	if at.node >= 0 {
		p.putNode(at.node, a)
		return
	}
	p.within(at.group, a)
}

func (p *packer) putNode(node int32, a amount) {
	p.take[node] += int32(p.total(a)) //nolint:gosec // At most what the node takes.
	if a.short > 0 {
		p.tail = node + 1
		if node < p.tree.grouped {
			p.tail = p.tree.groups[p.tree.home[node]].End
		}
	}
}

// within places an amount that a group holds: in the tightest group inside or,
// if that is a group of groups, over the fewest of these. All of them but one
// are filled; what is left for that one is placed as a gang of its own.
func (p *packer) within(g int32, a amount) {
	for a != (amount{}) {
		at, _ := p.tightest(g, a, &filter{})
		switch {
		case at.node >= 0:
			p.putNode(at.node, a)
			return
		case p.tree.groups[at.group].lowest:
			first, last := p.tree.span(at)
			p.spread(first, last, p.total(a))
			if a.short > 0 {
				p.tail = last
			}
			return
		}
		g, a = p.divide(at.group, a)
	}
}

// divide places an amount over the fewest groups in g, which holds it and none
// of them does. Groups with members come first and do not count. It returns
// the group that is not filled and its amount.
func (p *packer) divide(g int32, a amount) (int32, amount) {
	if p.placedIn[g] > 0 {
		p.groups.items = p.children(p.groups.items[:0], g, true)
		if chosen := p.groups.pick(a); len(chosen) > 0 {
			return p.fillAllButOne(chosen, a)
		}
		if a = p.fillAll(a); a == (amount{}) {
			return g, a
		}
	}
	p.groups.items = p.children(p.groups.items[:0], g, false)
	return p.fillAllButOne(p.groups.pick(a), a)
}

func (p *packer) fillAllButOne(chosen []item, a amount) (int32, amount) {
	last := len(chosen) - 1
	for _, c := range chosen[:last] {
		p.fill(c.id)
		a.blocks -= c.slots
	}
	return chosen[last].id, a
}

// fillAll fills all the groups collected, which do not hold an amount, and returns what is
// left of it.
func (p *packer) fillAll(a amount) amount {
	last := item{id: None}
	for _, c := range p.groups.items {
		if a.short > 0 && c.spare && last.id < 0 {
			last = c
			continue
		}
		p.fill(c.id)
		a.blocks -= c.slots
	}
	if last.id >= 0 {
		p.within(last.id, amount{blocks: last.slots, short: a.short})
		a = amount{blocks: a.blocks - last.slots}
	}
	return a
}

// fill gives a group all the blocks that it takes.
func (p *packer) fill(g int32) {
	groups := p.tree.groups
	if p.block == 1 {
		from, to := groups[g].First, groups[g].End
		copy(p.take[from:to], p.fit[from:to])
		return
	}
	for c := g; c < groups[g].next; c++ {
		if groups[c].lowest && p.slots[c] > 0 {
			p.spread(groups[c].First, groups[c].End, p.slots[c]*p.block)
		}
	}
}

// spread puts pods on the fewest nodes from first up to last, which have room
// for them: on nodes with members first.
func (p *packer) spread(first, last int32, pods int64) {
	for _, members := range [...]bool{true, false} {
		p.nodes.items = p.nodes.items[:0]
		total := int64(0)
		for node := first; node < last; node++ {
			if n := int64(p.fit[node]); n > 0 && members == (p.placed[node] > 0) {
				p.nodes.items = append(p.nodes.items, item{id: node, slots: n, room: int64(p.free[node])})
				total += n
			}
		}
		chosen := p.nodes.items
		if total > pods {
			chosen = p.nodes.pick(amount{blocks: pods})
		}
		for i := range chosen {
			n := min(pods, chosen[i].slots)
			p.take[chosen[i].id] = int32(n) //nolint:gosec // At most what the node takes.
			pods -= n
		}
		if pods == 0 {
			return
		}
	}
}

// ungrouped places an amount that the groups together do not hold: on one node
// in no group or, after the groups are full, on the fewest of these.
func (p *packer) ungrouped(a amount, f *filter) bool {
	if node := p.tightestNode(p.tree.grouped, p.tree.nodes(), a, f); node >= 0 {
		p.putNode(node, a)
		return true
	}
	return f.around == 0 && !f.nodes && p.overflow(a)
}

// overflow fills the groups and puts the rest on nodes in no group.
func (p *packer) overflow(a amount) bool {
	t := p.tree
	in := amount{blocks: min(a.blocks, p.slots[0])}
	if p.spare[0] {
		in.short = a.short
	}
	out := amount{blocks: a.blocks - in.blocks, short: a.short - in.short}
	p.nodes.items = p.nodes.items[:0]
	for node := t.grouped; node < t.nodes(); node++ {
		if n := int64(p.fit[node]); n > 0 {
			spare := out.short > 0 && n%p.block >= out.short
			p.nodes.items = append(p.nodes.items, item{id: node, slots: n / p.block, room: int64(p.free[node]), spare: spare})
		}
	}
	chosen := p.nodes.pick(out)
	if len(chosen) == 0 {
		return false
	}
	last := len(chosen) - 1
	for _, c := range chosen[:last] {
		p.putNode(c.id, amount{blocks: c.slots})
		out.blocks -= c.slots
	}
	p.putNode(chosen[last].id, out)
	p.within(0, in) // It chooses nodes in the same memory.
	return true
}
