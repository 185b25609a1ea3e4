package placement

import "slices"

// Guests are the pods of a gang that are not alike with those that lead: a
// master, parameter servers. Where the leading pods go is decided first. The
// guests are then seated among them where they cost the leading pods nothing;
// if that is not possible, each is seated where it costs the fewest of them,
// and the leading pods get what is left. For one guest that finds a place if
// there is one; for more it is a heuristic, which never puts on a node what it
// does not take.
const (
	// maxTries is how many groups of a tier are tried.
	maxTries = 24
	// maxReserved is how many guests are seated before the leading pods.
	maxReserved = 64
)

// mixed places the first n pending pods of a gang with guests.
func (p *planner) mixed(w part, n int) bool {
	f := p.bounds
	f.guests = true
	p.banned, p.costly = p.banned[:0], false
	p.countGuests(n)
	for tries, tier := 0, int32(-1); ; {
		at, ok := p.find(w, &f)
		if !ok {
			break
		}
		if p.seatIn(at, w, n) {
			return true
		}
		p.banned = append(p.banned, at)
		if !p.costly {
			p.price()
		}
		now := p.tier(at)
		if now != tier {
			tries, tier = 0, now
		}
		if tries++; tries > maxTries {
			f.from, p.banned = tier+1, p.banned[:0]
		}
	}
	return p.mixedOutside(w, n)
}

func (p *planner) tier(at target) int32 {
	if at.node >= 0 {
		return 0
	}
	return p.tree.groups[at.group].tier
}

// mixedOutside uses nodes in no group too.
func (p *planner) mixedOutside(w part, n int) bool {
	if p.bounds.inside != 0 || p.bounds.nodes {
		return false
	}
	at, ok := target{None, 0}, p.holds(0, w)
	if ok {
		p.put(at, w)
	} else {
		ok = p.outside(w)
	}
	if ok && p.seat(0, int32(len(p.fit)), n) { //nolint:gosec // At most maxNodes.
		return true
	}
	p.unseat()
	return false
}

// seatIn places the leading pods in a target, and the guests beside them.
func (p *planner) seatIn(at target, w part, n int) bool {
	first, last := at.node, at.node+1
	if at.node < 0 {
		first, last = p.tree.groups[at.group].first, p.tree.groups[at.group].last
	}
	p.put(at, w)
	if p.seat(first, last, n) {
		return true
	}
	p.unseat()
	if p.reserve(first, last, n) {
		p.sum()
		fits := at.node >= 0 && int64(p.fit[at.node]) >= p.total(w) || at.node < 0 && p.holds(at.group, w)
		if fits {
			p.put(at, w)
			return true
		}
	}
	p.unseat()
	p.sum()
	return false
}

// unseat takes back all but the room that the gang found.
func (p *planner) unseat() {
	clear(p.take)
	p.tail = 0
	for _, m := range p.seats {
		p.guests[m.Node] = 0
	}
	p.seats = p.seats[:0]
	for _, was := range slices.Backward(p.undo) {
		p.fit[was.Node] = int32(was.Rank) //nolint:gosec // It was there.
	}
	p.undo = p.undo[:0]
}

// seat finds nodes from first up to last for the guests among the first n
// pending pods. Nodes and groups that the gang uses come before others, and
// nodes on which a guest takes no leading pod's room before those on which it
// does.
func (p *planner) seat(first, last int32, n int) bool {
	p.markUsed(first, last)
	j := &p.job
	for i := 0; i < n; {
		rank := j.pending[i]
		task := j.task[rank]
		if j.lead[task] {
			i++
			continue
		}
		end := i
		for end < n && j.task[j.pending[end]] == task {
			end++
		}
		if !p.seatTask(first, last, j.pending[i:end]) {
			return false
		}
		i = end
	}
	return true
}

// scope is how near to the gang a node is.
type scope int

const (
	onNode scope = iota
	inDomain
	anywhere
)

// seatTask finds nodes for guests of one task.
func (p *planner) seatTask(first, last int32, ranks []int32) bool {
	for _, pass := range [...]struct {
		near scope
		full bool
	}{{onNode, true}, {inDomain, true}, {onNode, false}, {inDomain, false}, {anywhere, true}, {anywhere, false}} {
		for node := first; node < last && len(ranks) > 0; node++ {
			if p.scope(node) > pass.near {
				continue
			}
			lead := p.take[node]
			if pass.full {
				lead = max(lead, p.fit[node])
			}
			for len(ranks) > 0 && p.takes(node, lead, ranks[0]) {
				p.sitDown(node, ranks[0])
				ranks = ranks[1:]
			}
		}
	}
	return len(ranks) == 0
}

func (p *planner) sitDown(node, rank int32) {
	p.seats = append(p.seats, Member{Rank: int(rank), Node: node})
	p.guests[node]++
}

func (p *planner) scope(node int32) scope {
	switch {
	case p.take[node] > 0 || p.mates[node] > 0 || p.guests[node] > 0:
		return onNode
	case node < p.tree.grouped && p.used[p.tree.home[node]]:
		return inDomain
	}
	return anywhere
}

// markUsed notes the lowest groups that the gang uses.
func (p *planner) markUsed(first, last int32) {
	clear(p.used)
	for node := first; node < min(last, p.tree.grouped); node++ {
		if p.take[node] > 0 || p.mates[node] > 0 {
			p.used[p.tree.home[node]] = true
		}
	}
}
