package placement

import "slices"

// placeBlocks goes through the pending primary ranks up to last, block by
// block: those of a block with placed members go where these are, the others
// are free. It is false if there is no room for a block.
func (s *search) placeBlocks(last int32) bool {
	for block := range slices.Chunk(s.demand.primary, s.demand.block) {
		free, members := len(s.ranks), false
		var nodes []int32
		for _, rank := range block {
			switch at := s.demand.at[rank]; {
			case at != waiting:
				if members = true; at >= 0 {
					nodes = append(nodes, at)
				}
			case rank <= last:
				s.ranks = append(s.ranks, rank)
			}
		}
		if pending := s.ranks[free:]; members && len(pending) > 0 {
			s.ranks = s.ranks[:free]
			at, ok := s.blockTarget(nodes, int64(len(pending)))
			if !ok {
				return false
			}
			s.fix(pending, at)
		}
	}
	return true
}

// fix assigns what is pending of a block to nodes of a target. Where a kind is
// required, later blocks go into the same group of it.
func (s *search) fix(pending []int32, at target) {
	node, end := s.tree.span(at)
	if len(s.fixed) == 0 && (s.require.around != 0 || s.require.nodes) {
		in := s.required(node)
		for other := range s.fit {
			if s.required(int32(other)) != in {
				s.fit[other] = 0
			}
		}
	}
	s.spread(node, end, int64(len(pending)))
	for _, rank := range pending {
		for s.take[node] == 0 {
			node++
		}
		s.take[node]--
		s.fit[node]--
		s.fixed = append(s.fixed, Member{Rank: int(rank), Node: node})
		s.addMembers(node, 1)
	}
}

// blockTarget takes so many pods of a block that has members on some nodes: one
// of them that is in no group, else the lowest group of one of them with the
// least room to spare. Without any known node that is the lowest group of all,
// or the first node if one is required.
func (s *search) blockTarget(nodes []int32, pods int64) (target, bool) {
	best, t := target{None, None}, s.tree
	homes := map[int32]bool{}
	for _, node := range nodes {
		if node >= t.grouped && int64(s.fit[node]) >= pods {
			return target{node: node}, true
		}
		homes[t.home[node]] = true
	}
	if s.require.nodes {
		best.node = int32(slices.IndexFunc(s.fit, func(n int32) bool { return int64(n) >= pods })) //nolint:gosec // Few.
		return best, best.node >= 0
	}
	t.sum(s.room.pods, s.fit, nil)
	for i := range t.groups {
		g, room := int32(i), s.room.pods[i]
		if t.groups[i].lowest && (len(nodes) == 0 || homes[g]) && room >= pods &&
			(best.group < 0 || room < s.room.pods[best.group]) {
			best.group = g
		}
	}
	return best, best.group >= 0
}
