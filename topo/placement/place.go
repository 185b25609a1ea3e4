package placement

import (
	"slices"
	"sort"
)

// search is a plan in the making.
type search struct {
	secondary
	// base holds the number of primary pods that each node takes before any is assigned.
	base []int32
	// ranks are the primary ranks that go anywhere.
	ranks []int32
}

// Place assigns a node to every pod of a gang. It changes neither the gang nor the capacity; the
// plan is the caller's to keep. The error explains to users why no plan exists.
func Place(t *Tree, g *Gang, c *Capacity) (Plan, error) {
	s, ok := t.searches.Get().(*search)
	if !ok {
		s = newSearch(t)
	}
	defer t.searches.Put(s)
	if err := s.demand.read(t, g, c); err != nil {
		return Plan{}, err
	}
	s.begin()
	n := len(s.demand.pending)
	if !s.attempt(n) {
		least := s.demand.least()
		if n = s.most(least, n); n < least {
			return Plan{}, s.reject(least)
		}
		s.attempt(n)
	}
	return s.plan(n), nil
}

func newSearch(t *Tree) *search {
	n, groups := t.Len(), len(t.groups)
	byNode := func() []int32 { return make([]int32, n) }
	s := &search{base: byNode()}
	s.room = room{tree: t, fit: byNode(), free: byNode(), placed: byNode()}
	s.placedIn, s.space = make([]int32, groups), make([]item, groups)
	s.take, s.on, s.before = byNode(), byNode(), byNode()
	s.excluded, s.used = make([]bool, n), make([]bool, groups)
	return s
}

// begin notes where members are, which nodes are excluded, and how many primary
// pods the others take: of several classes the fewest, which holds for any
// mixture of them.
func (s *search) begin() {
	d := &s.demand
	clear(s.placed)
	clear(s.placedIn)
	s.fixed = s.fixed[:0]
	for _, node := range d.at {
		if node >= 0 {
			s.addMembers(node, 1)
		}
	}
	s.block = int64(d.block)
	clear(s.free)
	copy(s.free, d.room.Free)
	s.prefer = s.tree.bit(d.gang.Prefer)
	s.restrict()
	copy(s.base, d.room.Fit[d.classes[0]])
	for _, class := range d.classes[1:] {
		for node, n := range d.room.Fit[class] {
			s.base[node] = min(s.base[node], n)
		}
	}
	for node, excluded := range s.excluded {
		if excluded || s.base[node] < 0 {
			s.base[node] = 0
		}
	}
}

// restrict finds the nodes that the gang avoids, and with a required kind those
// in no group of the kind or, if members are in one, in another. Members in
// several groups of the kind cannot be moved: what is left goes into these
// groups.
func (s *search) restrict() {
	g := s.demand.gang
	s.require = filter{around: s.tree.bit(g.Require), nodes: g.Require == kindNode}
	clear(s.excluded)
	for _, node := range g.Avoid {
		s.excluded[node] = true
	}
	if g.Require == "" {
		return
	}
	members := map[int32]bool{}
	for _, node := range s.demand.at {
		if node >= 0 && s.required(node) >= 0 {
			members[s.required(node)] = true
		}
	}
	for node := range s.excluded {
		in := s.required(int32(node))
		s.excluded[node] = s.excluded[node] || in < 0 || len(members) > 0 && !members[in]
	}
	if len(members) > 1 {
		s.require = filter{}
	}
}

// required returns the group of the required kind that a node is in, or the node if
// that is required; None if it is in none.
func (s *search) required(node int32) int32 {
	if s.require.nodes {
		return node
	}
	groups := s.tree.groups
	for g := s.tree.home[node]; g > 0; g = groups[g].parent {
		if 1<<groups[g].kind == s.require.around && !groups[g].remainder {
			return g
		}
	}
	return None
}

// attempt plans the first n pending pods: first pods of blocks with members, then pods that go
// anywhere.
func (s *search) attempt(n int) bool {
	for _, m := range s.fixed {
		s.addMembers(m.Node, -1)
	}
	s.reset(s.base)
	s.tried, s.cost, s.fixed, s.ranks = s.tried[:0], s.cost[:0], s.fixed[:0], s.ranks[:0]
	if n == 0 || !s.placeBlocks(s.demand.pending[n-1]) {
		return n == 0
	}
	free := int64(len(s.ranks))
	a := amount{blocks: free / s.block, short: free % s.block}
	s.short = a.short
	s.sum()
	return s.place(a, s.demand.pending[:n])
}

// placeBlocks goes through the pending primary ranks up to last, block by
// block: those of a block with placed members go where these are, the others
// are free. It returns false if a block does not fit.
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

// fix assigns the pending ranks of a block to nodes of a target. Where a kind is
// required, later blocks go into the same group of it.
func (s *search) fix(pending []int32, at target) {
	node, end := s.tree.span(at)
	if len(s.fixed) == 0 && s.require != (filter{}) {
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

// blockTarget returns the target for pods of a block that has members on some nodes: one of these
// nodes without a group, else the lowest group of one of them with the least room to spare. Without
// any known node that is the lowest group of all, or the first node if one is required.
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
	s.sum()
	for i, in := range s.space {
		if t.groups[i].lowest && (len(nodes) == 0 || homes[in.id]) && in.room >= pods &&
			(best.group < 0 || in.room < s.space[best.group].room) {
			best.group = in.id
		}
	}
	return best, best.group >= 0
}

// most returns the largest number of pending pods, from lo on and under hi, that
// fit, the lowest ranks first; lo-1 if even lo do not.
func (s *search) most(lo, hi int) int {
	if len(s.demand.primary) == len(s.demand.at) {
		hi = int(min(int64(hi), s.bound()+int64(len(s.demand.pending)-len(s.ranks))+1))
	}
	// Without slices and secondary pods that is the answer.
	if hi <= lo || s.attempt(hi-1) {
		return max(hi, lo) - 1
	}
	hi--
	return hi - 1 - sort.Search(hi-lo, func(i int) bool { return s.attempt(hi - 1 - i) })
}

// bound returns the most primary pods that one group takes in which the gang may be.
func (s *search) bound() (most int64) {
	if s.require.around != 0 {
		return int64(s.tree.LargestFree(s.base)[s.demand.gang.Require])
	}
	for _, n := range s.base {
		most += int64(n)
	}
	return most
}
