package placement

// packer puts pods on the nodes of the targets that hold them.
type packer struct {
	room
	// take holds the number of primary pods for each node, and tail is one past the last node of
	// the lowest group that gets the shorter block.
	take []int32
	tail int32
	// fixed are members of this plan that take does not count: they go where
	// placed members of their block are.
	fixed []Member
	nodes picker
}

// put places an amount in a target that holds it: on the node, or in the tightest group inside. If
// that is a group of groups, it goes over the fewest of these; the remainder for the unfilled group
// is placed as a separate gang.
func (p *packer) put(at target, a amount) {
	for a != (amount{}) {
		if at.node < 0 {
			at, _ = p.tightest(at.group, a, &filter{})
		}
		if at.node >= 0 || p.tree.groups[at.group].lowest {
			first, last := p.tree.span(at)
			p.spread(first, last, p.total(a))
			if a.short > 0 {
				p.tail = max(last, p.tree.groups[p.tree.home[first]].End)
			}
			return
		}
		at.group, a = p.divide(at.group, a)
	}
}

// divide places an amount over the fewest groups in g, which holds it and none
// of them does. Groups with members come first and do not count: if they do not
// hold it they are filled. It returns the group that is not filled and its
// amount.
func (p *packer) divide(g int32, a amount) (int32, amount) {
	for _, members := range [...]bool{p.placedIn[g] > 0, false} {
		p.groups.items = p.children(p.groups.items[:0], g, members)
		chosen, left := p.groups.pick(a)
		for i, c := range chosen {
			switch {
			case i < len(chosen)-1:
				p.fill(c.id)
			case left == (amount{}):
				return c.id, a
			default:
				p.put(target{None, c.id}, amount{c.slots, a.short - left.short})
			}
			a.blocks -= c.slots
		}
		a = left
	}
	return g, a
}

// fill gives a group all the blocks that it takes.
func (p *packer) fill(g int32) {
	groups := p.tree.groups
	for c := g; c < groups[g].next; c++ {
		if groups[c].lowest && p.space[c].slots > 0 {
			p.spread(groups[c].First, groups[c].End, p.space[c].slots*p.block)
		}
	}
}

// spread puts pods on the fewest nodes from first up to last, which have room
// for them: on nodes with members first.
func (p *packer) spread(first, last int32, pods int64) {
	for _, members := range [...]bool{true, false} {
		p.nodes.items = p.nodes.items[:0]
		for node := first; node < last && pods > 0; node++ {
			if n := int64(p.fit[node]); n > 0 && members == (p.placed[node] > 0) {
				p.nodes.items = append(p.nodes.items, item{id: node, slots: n, room: int64(p.free[node])})
			}
		}
		chosen, _ := p.nodes.pick(amount{blocks: pods})
		for _, c := range chosen {
			n := min(pods, c.slots)
			p.take[c.id] = int32(n) //nolint:gosec // At most what the node takes.
			pods -= n
		}
	}
}

// ungrouped places an amount that the groups together do not hold: on one node
// in no group or, after the groups are full, on the fewest of these.
func (p *packer) ungrouped(a amount) bool {
	t := p.tree
	if node := p.tightestNode(t.grouped, t.nodes(), 0, a, &p.require); node >= 0 {
		p.put(target{node: node}, a)
		return true
	}
	if p.require != (filter{}) {
		return false
	}
	in := amount{blocks: min(a.blocks, p.space[0].slots)}
	if p.space[0].spare {
		in.short = a.short
	}
	out := amount{blocks: a.blocks - in.blocks, short: a.short - in.short}
	p.groups.items = p.groups.items[:0]
	for node := t.grouped; node < t.nodes(); node++ {
		if n := int64(p.fit[node]); n > 0 {
			spare := out.short > 0 && n%p.block >= out.short
			p.groups.items = append(p.groups.items, item{id: node, slots: n / p.block, room: int64(p.free[node]), spare: spare})
		}
	}
	chosen, left := p.groups.pick(out)
	if left != (amount{}) {
		return false
	}
	for i, c := range chosen {
		n := amount{blocks: c.slots}
		if i == len(chosen)-1 {
			n = out
		}
		p.put(target{node: c.id}, n)
		out.blocks -= c.slots
	}
	p.put(target{None, 0}, in)
	return true
}
