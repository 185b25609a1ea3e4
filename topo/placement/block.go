package placement

import "slices"

// fix gives the pods of a block that has members a place in their lowest
// group, and collects the others. It is false if there is no room for them.
func (p *planner) fix(n int) bool {
	j := &p.job
	pending := j.pending[:n]
	if j.block == 1 || len(j.pending) == j.ranks {
		for _, rank := range pending {
			if j.lead[j.task[rank]] {
				p.free = append(p.free, rank)
			}
		}
		return true
	}
	return p.fixBlocks(pending)
}

// fixBlocks goes through the ranks block by block.
func (p *planner) fixBlocks(pending []int32) bool {
	j := &p.job
	leading, last := 0, int32(-1)
	if len(pending) > 0 {
		last = pending[len(pending)-1]
	}
	var block []int32
	flush := func() bool {
		ok := p.fixBlock(block, last)
		block = block[:0]
		return ok
	}
	for rank := range j.at {
		if !j.lead[j.task[rank]] {
			continue
		}
		block = append(block, int32(rank))
		if leading++; leading%j.block == 0 && !flush() {
			return false
		}
	}
	return flush()
}

// fixBlock places what is pending of one block, up to the rank last.
func (p *planner) fixBlock(block []int32, last int32) bool {
	j, t := &p.job, p.tree
	waits, members := int64(0), false
	var homes, loose []int32
	for _, rank := range block {
		at := j.at[rank]
		members = members || at != waiting
		switch {
		case at == waiting && rank <= last:
			waits++
		case at < 0:
		case at < t.grouped:
			homes = append(homes, t.home[at])
		default:
			loose = append(loose, at)
		}
	}
	if waits == 0 {
		return true
	}
	if !members {
		for _, rank := range block {
			if rank <= last {
				p.free = append(p.free, rank)
			}
		}
		return true
	}
	for _, at := range loose {
		if int64(p.fit[at]) >= waits {
			p.seatBlock(block, last, at, at+1, waits)
			return true
		}
	}
	if len(homes) == 0 && len(loose) > 0 {
		return false
	}
	from, to := p.aroundBlock(homes, waits)
	if from < 0 {
		return false
	}
	p.seatBlock(block, last, from, to, waits)
	return true
}

// aroundBlock is the nodes that take so many pods of one block: of the lowest
// groups homes or, if there are none, of any.
func (p *planner) aroundBlock(homes []int32, pods int64) (from, to int32) {
	if p.bounds.nodes {
		for node, n := range p.fit {
			at := int32(node)
			if int64(n) >= pods && (!p.joined() || p.mates[at] > 0) {
				return at, at + 1
			}
		}
		return None, None
	}
	if home := p.tightestOf(homes, pods); home >= 0 {
		return p.tree.groups[home].first, p.tree.groups[home].last
	}
	return None, None
}

// seatBlock puts what is pending of a block on nodes from first up to last.
func (p *planner) seatBlock(block []int32, last, first, end int32, waits int64) {
	p.spreadNodes(first, end, waits)
	node := first
	for _, rank := range block {
		if p.job.at[rank] != waiting || rank > last {
			continue
		}
		for p.take[node] == 0 {
			node++
		}
		p.take[node]--
		p.fit[node]--
		p.fixed = append(p.fixed, Member{Rank: int(rank), Node: node})
		p.mate(node, 1)
	}
}

// tightestOf is the lowest group among homes, or of all if there are none, that
// takes so many pods with the least room to spare; None if none does.
func (p *planner) tightestOf(homes []int32, pods int64) int32 {
	t, best, least := p.tree, None, int64(0)
	for i := range t.groups {
		g := int32(i)
		if !t.groups[i].lowest || len(homes) > 0 && !slices.Contains(homes, g) || !p.mayFix(g) {
			continue
		}
		room := int64(0)
		for _, n := range p.fit[t.groups[i].first:t.groups[i].last] {
			room += int64(n)
		}
		if room >= pods && (best < 0 || room < least) {
			best, least = g, room
		}
	}
	return best
}

// mayFix tells whether pods that are fixed in a lowest group are with others in
// one group of the required kind.
func (p *planner) mayFix(home int32) bool {
	if p.bounds.inside == 0 || p.held[0] == 0 || p.tree.groups[home].first == p.tree.groups[home].last {
		return true
	}
	around := p.required(p.tree.groups[home].first)
	return around >= 0 && p.holdsMembers(around)
}

// joined tells whether any pod has a node that is known.
func (p *planner) joined() bool {
	return len(p.fixed) > 0 || slices.ContainsFunc(p.job.at, func(at int32) bool { return at >= 0 })
}
