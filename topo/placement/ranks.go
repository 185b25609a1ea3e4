package placement

// plan gives the ranks of the last attempt their nodes.
//
// Leading ranks go through the nodes in tree order, from one past the lowest
// group with the shorter block and around to it, so that every group gets
// consecutive ranks, and whole blocks before the shorter one.
func (p *planner) plan() Plan {
	j := &p.job
	out := make([]int32, j.ranks)
	for rank, node := range j.at {
		out[rank] = max(node, None)
	}
	for _, m := range p.fixed {
		out[m.Rank] = m.Node
	}
	for _, m := range p.seats {
		out[m.Rank] = m.Node
	}
	free := p.free
	for _, span := range [2][2]int32{{p.tail, int32(len(p.take))}, {0, p.tail}} { //nolint:gosec // At most maxNodes.
		for node := span[0]; node < span[1] && len(free) > 0; node++ {
			for range min(int(p.take[node]), len(free)) {
				out[free[0]] = node
				free = free[1:]
			}
		}
	}
	plan := Plan{Nodes: out}
	p.describe(&plan)
	return plan
}

// counted marks nodes in no group that describe has seen.
const counted = -1

// describe finds the group that a plan reached, and counts its domains.
func (p *planner) describe(plan *Plan) {
	group, single, last, loose := None, None, None, false
	clear(p.used)
	for rank, node := range plan.Nodes {
		if node >= 0 || p.job.at[rank] == None {
			plan.Pods++
		}
		if node < 0 || node == last {
			continue
		}
		if single = None; last < 0 {
			single = node
		}
		last = node
		if p.newDomain(node) {
			plan.Domains++
			group = p.around(group, node)
		}
		loose = loose || node >= p.tree.grouped
	}
	plan.Group, plan.Index = p.reached(group, single, loose)
}

// newDomain tells, once for each, whether a node is in a lowest group that the
// plan was not in yet.
func (p *planner) newDomain(node int32) bool {
	if node >= p.tree.grouped {
		// The members there are not needed any more.
		was := p.mates[node]
		p.mates[node] = counted
		return was != counted
	}
	home := p.tree.home[node]
	was := p.used[home]
	p.used[home] = true
	return !was
}

// around is the lowest group that has a group, if any, and a node in it.
func (p *planner) around(group, node int32) int32 {
	t := p.tree
	if node >= t.grouped {
		return group
	}
	home := t.home[node]
	if group < 0 {
		return home
	}
	for home < group || home >= t.groups[group].end {
		group = t.groups[group].parent
	}
	return group
}

func (p *planner) reached(group, single int32, loose bool) (Group, int) {
	t := p.tree
	switch {
	case single >= 0:
		return t.single(single), -1
	case loose:
		return Group{Tier: t.whole() + 1, Parent: -1, End: int32(t.Len())}, -1 //nolint:gosec // At most maxNodes.
	case group < 0:
		return t.Group(0), 0
	case t.groups[group].own:
		group = t.groups[group].parent
	}
	return t.Group(int(group)), int(group)
}
