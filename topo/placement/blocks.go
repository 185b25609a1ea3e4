package placement

import "slices"

// placeBlocks goes through the pending primary ranks up to last, block by
// block: those of a block with placed members go where these are, the others
// are free. It is false if there is no room for a block.
func (s *search) placeBlocks(last int32) bool {
	for block := range slices.Chunk(s.demand.primary, s.demand.block) {
		if !s.placeBlock(block, last) {
			return false
		}
	}
	return true
}

func (s *search) placeBlock(block []int32, last int32) bool {
	d, t := &s.demand, s.tree
	pods, members := int64(0), false
	var homes, ungrouped []int32
	for _, rank := range block {
		at := d.at[rank]
		members = members || at != waiting
		switch {
		case at == waiting && rank <= last:
			pods++
		case at < 0:
		case at < t.grouped:
			homes = append(homes, t.home[at])
		default:
			ungrouped = append(ungrouped, at)
		}
	}
	if pods == 0 {
		return true
	}
	if !members {
		s.ranks = append(s.ranks, block[:pods]...)
		return true
	}
	for _, at := range ungrouped {
		if int64(s.fit[at]) >= pods {
			s.fix(block, last, target{node: at}, pods)
			return true
		}
	}
	if len(homes) == 0 && len(ungrouped) > 0 {
		return false
	}
	at, ok := s.blockTarget(homes, pods)
	if ok {
		s.fix(block, last, at, pods)
	}
	return ok
}

// fix assigns what is pending of a block to nodes of a target.
func (s *search) fix(block []int32, last int32, at target, pods int64) {
	node, end := s.tree.span(at)
	s.spread(node, end, pods)
	for _, rank := range block {
		if s.demand.at[rank] != waiting || rank > last {
			continue
		}
		for s.take[node] == 0 {
			node++
		}
		s.take[node]--
		s.fit[node]--
		s.fixed = append(s.fixed, Member{Rank: int(rank), Node: node})
		s.addMembers(node, 1)
	}
}

// blockTarget is the lowest group among homes, or of all if there are none,
// that takes so many pods of a block with the least room to spare; the first
// node that takes them, if one is required. Where a kind is required, no other
// group of it than that of earlier blocks is left.
func (s *search) blockTarget(homes []int32, pods int64) (target, bool) {
	best, least, groups := target{None, None}, int64(0), s.tree.groups
	for node, n := range s.fit {
		if s.require.nodes && int64(n) >= pods && (len(s.fixed) == 0 || s.placed[node] > 0) {
			return target{node: int32(node)}, true
		}
	}
	for i := range groups {
		g := int32(i)
		if s.require.nodes || !groups[g].lowest || len(homes) > 0 && !slices.Contains(homes, g) || !s.mayFix(g) {
			continue
		}
		room := int64(0)
		for _, n := range s.fit[groups[g].First:groups[g].End] {
			room += int64(n)
		}
		if room >= pods && (best.group < 0 || room < least) {
			best, least = target{None, g}, room
		}
	}
	return best, best.group >= 0
}

// mayFix is true if pods that are fixed in a lowest group are with those fixed
// before in one group of the required kind.
func (s *search) mayFix(home int32) bool {
	if s.require.around == 0 || len(s.fixed) == 0 {
		return true
	}
	in := s.tree.ancestor(home, s.require.around)
	return in >= 0 && s.placedIn[in] > 0
}
