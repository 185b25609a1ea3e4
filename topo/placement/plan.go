package placement

// plan gives the ranks of the last attempt their nodes.
//
// Free ranks go through the nodes in tree order, from one past the lowest group
// with the shorter block and around to it, so that every group gets consecutive
// ranks, and whole blocks before the shorter one.
func (s *search) plan() Plan {
	p := &s.pack
	out := make([]int32, len(s.demand.at))
	for rank, node := range s.demand.at {
		out[rank] = max(node, None)
	}
	for _, m := range p.fixed {
		out[m.Rank] = m.Node
	}
	for _, m := range s.secondary.assigned {
		out[m.Rank] = m.Node
	}
	free := s.free
	for _, span := range [2][2]int32{{p.tail, s.tree.nodes()}, {0, p.tail}} {
		for node := span[0]; node < span[1] && len(free) > 0; node++ {
			for range min(int(p.take[node]), len(free)) {
				out[free[0]] = node
				free = free[1:]
			}
		}
	}
	plan := Plan{Nodes: out}
	s.describe(&plan)
	return plan
}

// describe finds the group that a plan reached, and counts its pods and
// domains.
func (s *search) describe(plan *Plan) {
	t := s.tree
	group, single, last, ungrouped := None, None, None, false
	clear(s.used)
	for rank, node := range plan.Nodes {
		if node >= 0 || s.demand.at[rank] == None {
			plan.Pods++
		}
		if node < 0 || node == last {
			continue
		}
		if single = None; last < 0 {
			single = node
		}
		last = node
		domain := int(t.home[node])
		if node >= t.grouped {
			ungrouped, domain = true, len(t.groups)+int(node-t.grouped)
		} else {
			group = t.common(group, t.home[node])
		}
		if !s.used[domain] {
			s.used[domain] = true
			plan.Domains++
		}
	}
	plan.Group, plan.Index = t.reached(group, single, ungrouped)
}

// common is the lowest group that has two groups in it; a may be None.
func (t *Tree) common(a, b int32) int32 {
	if a < 0 {
		return b
	}
	for b < a || b >= t.groups[a].next {
		a = t.groups[a].parent
	}
	return a
}

// reached is a plan's group: a single node, the root with nodes in no group, or
// a group.
func (t *Tree) reached(group, single int32, ungrouped bool) (Group, int) {
	switch {
	case single >= 0:
		return Group{Name: t.names[single], Kind: kindNode, Parent: -1, First: single, End: single + 1}, -1
	case ungrouped:
		return Group{Tier: int(t.groups[0].tier) + 1, Parent: -1, End: t.nodes()}, -1
	case group < 0:
		group = 0
	case t.groups[group].remainder:
		group = t.groups[group].parent
	}
	return t.Group(int(group)), int(group)
}
