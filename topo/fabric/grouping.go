package fabric

import "slices"

// grouping groups members (nodes, leaf groups) by the switches that their links
// end at (leaves, spines): the four votes of the package comment. Every vote is
// a function of the outcomes of the vote before; a change is followed through
// the votes only as far as it changes an outcome.
type grouping[T any] struct {
	switches map[string]*hub[T]
	// touched are the switches with links that changed since the last votes,
	// changed the members with such links.
	touched []*hub[T]
	changed []*member[T]
	// round marks what is in the lists that are built now.
	round uint32
	// met is for anchor, rails and usual are for usualRails.
	met   []*hub[T]
	rails [maxRail * maxPlane]int32
	usual []int32
}

// hub is a switch with the links that end at it.
type hub[T any] struct {
	id    string
	links []attachment[T]
	// anchor and home are the outcomes of votes 1 and 3.
	anchor, home string
	// groups are the links by the groups of their members.
	groups votes
	// usual are the rails with at least half as many links as the one with the
	// most, sorted.
	usual []int32
	// leading and following count the links of members that lead and follow.
	leading, following tally

	shared int32 // For anchor.
	round  uint32
}

// tally counts links, and those of members that have others.
type tally struct{ links, wide int }

func (t *tally) add(m int32, n int) {
	t.links += n
	if m > 1 {
		t.wide += n
	}
}

// attachment is a link as its switch has it. Of a member's links to the switch
// it is the nth, from 1.
type attachment[T any] struct {
	member *member[T]
	rail   int32
	nth    int32
}

// member is what has links.
type member[T any] struct {
	owner T
	// weights are the links by switch, degree is how many they are.
	weights []weight[T]
	degree  int32
	// follows is set on what does not count at switches with more than few links of
	// others.
	follows bool
	// vote and group are the outcomes of votes 2 and 4; group is "" without
	// links.
	vote, group string

	isChanged bool
	round     uint32
}

// link leads to a switch. A leaf usually has the links of few rails.
type link[T any] struct {
	to   *hub[T]
	rail int32
}

type weight[T any] struct {
	to *hub[T]
	n  int32
}

// usualLinks is how many links a leaf of a fat tree has anyway.
const usualLinks = 32

func newGrouping[T any]() grouping[T] {
	return grouping[T]{switches: map[string]*hub[T]{}, round: 1}
}

// at is the switch with that ID, made if need be. It lasts as long as a link
// ends at it.
func (g *grouping[T]) at(id string) *hub[T] {
	h := g.switches[id]
	if h == nil {
		h = &hub[T]{id: id, links: make([]attachment[T], 0, usualLinks)}
		g.switches[id] = h
	}
	return h
}

// set gives a member other links. Without any it leaves the grouping.
func (g *grouping[T]) set(m *member[T], links []link[T], follows bool) {
	for _, w := range m.weights {
		w.to.tally(m).add(m.degree, -int(w.n))
		w.to.links = slices.DeleteFunc(w.to.links, func(a attachment[T]) bool { return a.member == m })
		g.touch(w.to)
	}
	m.weights, m.degree = make([]weight[T], 0, len(links)), int32(len(links)) //nolint:gosec // maxPorts, or spines.
	m.follows = follows
	for _, l := range links {
		i := slices.IndexFunc(m.weights, func(w weight[T]) bool { return w.to == l.to })
		if i < 0 {
			i = len(m.weights)
			m.weights = append(m.weights, weight[T]{to: l.to})
		}
		m.weights[i].n++
		l.to.tally(m).add(m.degree, 1)
		l.to.links = append(l.to.links, attachment[T]{m, l.rail, m.weights[i].n})
		g.touch(l.to)
	}
	if !m.isChanged {
		m.isChanged = true
		g.changed = append(g.changed, m)
	}
}

func (h *hub[T]) tally(m *member[T]) *tally {
	if m.follows {
		return &h.following
	}
	return &h.leading
}

// counts reports whether a member's links count at a switch, in votes 1 and 3.
func (h *hub[T]) counts(m *member[T]) bool { return !m.follows || h.leading.links <= few }

// counted counts the links that do.
func (h *hub[T]) counted() tally {
	if h.leading.links > few {
		return h.leading
	}
	return tally{h.leading.links + h.following.links, h.leading.wide + h.following.wide}
}

func (g *grouping[T]) touch(h *hub[T]) { g.touched = g.hub(g.touched, h) }

// hub and member append to a list what is not in it yet. Of each sort only one
// list is built in a round.
func (g *grouping[T]) hub(list []*hub[T], h *hub[T]) []*hub[T] {
	if h.round == g.round {
		return list
	}
	h.round = g.round
	return append(list, h)
}

func (g *grouping[T]) member(list []*member[T], m *member[T]) []*member[T] {
	if m.round == g.round {
		return list
	}
	m.round = g.round
	return append(list, m)
}

// outcome is what votes changed.
type outcome[T any] struct {
	// moved are the members with another group or with other links, with the
	// group they were in before.
	moved []move[T]
	// groups are those to which a switch has become foreign or its own.
	groups []string
}

type move[T any] struct {
	member *member[T]
	was    string
}

// vote brings the groups up to date.
func (g *grouping[T]) vote() outcome[T] {
	g.round++
	voters := g.anchors()
	g.round++
	homes := g.votes(voters)
	members := g.homes(homes)
	out := outcome[T]{moved: g.groups(members)}
	g.round++
	out.groups = g.count(out.moved)
	for _, h := range g.touched {
		if len(h.links) == 0 {
			delete(g.switches, h.id)
		}
	}
	for _, m := range g.changed {
		m.isChanged = false
	}
	g.touched, g.changed = nil, nil
	g.round++
	return out
}

// anchors is vote 1, for the touched switches and those that share members with
// them. It returns the members that have to vote again.
func (g *grouping[T]) anchors() (voters []*member[T]) {
	again := slices.Clone(g.touched)
	if len(again) < len(g.switches) { // In a first tree there are no others.
		for _, h := range again {
			h.round = g.round
		}
		for _, h := range g.touched {
			for _, l := range h.links {
				for _, w := range l.member.weights {
					again = g.hub(again, w.to)
				}
			}
		}
	}
	for _, h := range again {
		anchor := g.anchor(h)
		if anchor == h.anchor {
			continue
		}
		h.anchor = anchor
		for _, l := range h.links {
			voters = g.member(voters, l.member)
		}
	}
	for _, m := range g.changed {
		voters = g.member(voters, m)
	}
	return voters
}

// votes is vote 2. It returns the switches with another home, perhaps.
func (g *grouping[T]) votes(voters []*member[T]) (homes []*hub[T]) {
	for _, h := range g.touched {
		homes = g.hub(homes, h)
	}
	var v votes
	for _, m := range voters {
		v.reset()
		for _, w := range m.weights {
			v.add(w.to.anchor, w.n)
		}
		vote := v.most()
		if vote == m.vote {
			continue
		}
		m.vote = vote
		for _, w := range m.weights {
			homes = g.hub(homes, w.to)
		}
	}
	return homes
}

// homes is vote 3. It returns the members in another group, perhaps.
func (g *grouping[T]) homes(homes []*hub[T]) (members []*member[T]) {
	var v votes
	for _, h := range homes {
		v.reset()
		for _, l := range h.links {
			if h.counts(l.member) {
				v.add(l.member.vote, 1)
			}
		}
		home, turned := v.most(), g.usualRails(h)
		if home == h.home && !turned {
			continue
		}
		h.home = home
		for _, l := range h.links {
			members = g.member(members, l.member)
		}
	}
	for _, m := range g.changed {
		members = g.member(members, m)
	}
	return members
}

// usualRails computes the usual rails of a switch, and reports whether they are
// others.
func (g *grouping[T]) usualRails(h *hub[T]) (turned bool) {
	most := int32(0)
	for _, l := range h.links {
		if g.rails[l.rail] == 0 {
			g.usual = append(g.usual, l.rail)
		}
		g.rails[l.rail]++
		most = max(most, g.rails[l.rail])
	}
	usual := g.usual[:0]
	for _, rail := range g.usual {
		if 2*g.rails[rail] >= most {
			usual = append(usual, rail)
		}
		g.rails[rail] = 0
	}
	slices.Sort(usual)
	if turned = !slices.Equal(usual, h.usual); turned {
		h.usual = slices.Clone(usual)
	}
	g.usual = g.usual[:0]
	return turned
}

// groups is vote 4. Among equals it prefers the group at the switches of which the
// member's links start from a usual rail.
func (g *grouping[T]) groups(members []*member[T]) []move[T] {
	moved := make([]move[T], 0, len(members))
	var v votes
	for _, m := range members {
		v.reset()
		for _, w := range m.weights {
			v.add(w.to.home, w.n)
		}
		group := v.most()
		if v.tied(group) {
			group = m.favored(&v)
		}
		if group != m.group || m.isChanged {
			moved = append(moved, move[T]{m, m.group})
			m.group = group
		}
	}
	return moved
}

// favored decides a tie: by the links that start from a usual rail.
func (m *member[T]) favored(v *votes) string {
	most := v.count(v.most())
	var favored votes
	for _, one := range v.list {
		if one.n == most {
			favored.add(one.id, 1)
		}
	}
	for _, w := range m.weights {
		for _, l := range w.to.links {
			if l.member == m && slices.Contains(w.to.usual, l.rail) && favored.count(w.to.home) > 0 {
				favored.add(w.to.home, 1)
			}
		}
	}
	return favored.most()
}

// count counts again the links of which groups end at which switches.
func (g *grouping[T]) count(moved []move[T]) (groups []string) {
	var again []*hub[T]
	for _, h := range g.touched {
		again = g.hub(again, h)
	}
	for _, m := range moved {
		for _, w := range m.member.weights {
			again = g.hub(again, w.to)
		}
	}
	for _, h := range again {
		groups = h.count(groups)
	}
	return groups
}

// count appends the groups to which the switch is not what it was.
func (h *hub[T]) count(groups []string) []string {
	var now votes
	for _, l := range h.links {
		if h.counts(l.member) {
			now.add(l.member.group, 1)
		}
	}
	for _, v := range h.groups.list {
		if h.groups.foreign(v.id) != now.foreign(v.id) {
			groups = append(groups, v.id)
		}
	}
	for _, v := range now.list {
		if h.groups.count(v.id) == 0 {
			groups = append(groups, v.id)
		}
	}
	h.groups = now
	return groups
}
