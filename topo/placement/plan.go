package placement

import "slices"

// plan gives the ranks of the last attempt their nodes.
//
// Free ranks go through the nodes in tree order, from one past the lowest group
// with the shorter block and around to it, so that every group gets consecutive
// ranks, and whole blocks before the shorter one.
func (s *search) plan() Plan {
	out := Plan{Nodes: make([]int32, len(s.demand.at))}
	for rank, node := range s.demand.at {
		out.Nodes[rank] = max(node, None)
		if node == None {
			out.Pods++
		}
	}
	for _, m := range slices.Concat(s.fixed, s.assigned) {
		out.Nodes[m.Rank] = m.Node
	}
	ranks := s.ranks
	for _, span := range [2][2]int32{{s.tail, s.tree.nodes()}, {0, s.tail}} {
		for node := span[0]; node < span[1] && len(ranks) > 0; node++ {
			for range min(int(s.take[node]), len(ranks)) {
				out.Nodes[ranks[0]] = node
				ranks = ranks[1:]
			}
		}
	}
	first, last := s.tree.nodes(), None
	for _, node := range out.Nodes {
		if node >= 0 {
			first, last = min(first, node), max(last, node)
			out.Pods++
		}
	}
	out.Group = s.tree.groupOf(first, last)
	return out
}

// groupOf is the tightest group that has the nodes first and last; the root if
// last is None.
func (t *Tree) groupOf(first, last int32) Group {
	switch {
	case last == None:
		return t.groups[0].Group
	case first == last:
		return Group{Name: t.names[first], Kind: kindNode, First: first, End: last + 1}
	case last >= t.grouped:
		return Group{Tier: t.groups[0].Tier + 1, End: t.nodes()}
	}
	g := t.common(first, last)
	if t.groups[g].remainder {
		g = t.groups[g].parent
	}
	return t.groups[g].Group
}
