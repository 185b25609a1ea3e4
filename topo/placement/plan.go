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
	first, last := t.nodes(), None
	clear(s.used)
	for rank, node := range plan.Nodes {
		if node >= 0 || s.demand.at[rank] == None {
			plan.Pods++
		}
		if node < 0 {
			continue
		}
		first, last = min(first, node), max(last, node)
		domain := int(t.home[node])
		if node >= t.grouped {
			domain = len(t.groups) + int(node-t.grouped)
		}
		if !s.used[domain] {
			s.used[domain] = true
			plan.Domains++
		}
	}
	plan.Index = -1
	switch {
	case last == None:
		plan.Group, plan.Index = t.Group(0), 0
	case first == last:
		plan.Group = Group{Name: t.names[first], Kind: kindNode, Parent: -1, First: first, End: first + 1}
	case last >= t.grouped:
		plan.Group = Group{Tier: int(t.groups[0].tier) + 1, Parent: -1, End: t.nodes()}
	default:
		g := t.common(first, last)
		if t.groups[g].remainder {
			g = t.groups[g].parent
		}
		plan.Group, plan.Index = t.Group(int(g)), int(g)
	}
}
