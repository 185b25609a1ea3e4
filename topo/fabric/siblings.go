package fabric

// anchor is the least ID among a switch and its siblings.
func (g *grouping[T]) anchor(h *hub[T]) string {
	for _, l := range h.links {
		if !h.counts(l.member) {
			continue
		}
		for _, w := range l.member.weights {
			if w.n < l.nth || !w.to.counts(l.member) {
				continue
			}
			if w.to.shared == 0 {
				g.met = append(g.met, w.to)
			}
			w.to.shared++
		}
	}
	least := h.id
	for _, o := range g.met {
		if o.id < least && h.siblings(o) {
			least = o.id
		}
		o.shared = 0
	}
	g.met = g.met[:0]
	return least
}

// siblings is vote 1 for a switch and one of which shared is counted.
func (h *hub[T]) siblings(o *hub[T]) bool {
	here, there := h.counted(), o.counted()
	if n := 2 * int(o.shared); n > here.links && n > there.links {
		return true
	}
	return o.shared > few && 8*int(o.shared) >= max(here.wide, there.wide) && h.sharesClasses(o)
}

// maxDegree is from how many links on members are of one class.
const maxDegree = 32

// sharesClasses is the second half of vote 1: over the classes of members, by how
// many links they have, of which neither switch has four times as many as the
// other. A member with one link is never on both.
func (h *hub[T]) sharesClasses(o *hub[T]) bool {
	var classes [maxDegree + 1]struct{ here, there, both int }
	for _, l := range h.links {
		c := &classes[min(l.member.degree, maxDegree)]
		switch {
		case !h.counts(l.member):
			continue
		case o.counts(l.member) && l.member.linksTo(o) >= l.nth:
			c.both++
		}
		c.here++
	}
	for _, l := range o.links {
		if o.counts(l.member) {
			classes[min(l.member.degree, maxDegree)].there++
		}
	}
	here, there, both := 0, 0, 0
	for _, c := range classes[2:] {
		if 4*min(c.here, c.there) > max(c.here, c.there) {
			here, there, both = here+c.here, there+c.there, both+c.both
		}
	}
	return both > few && 2*both > here && 2*both > there && 8*both >= max(h.counted().wide, o.counted().wide)
}

// linksTo counts a member's links to a switch.
func (m *member[T]) linksTo(h *hub[T]) int32 {
	for _, w := range m.weights {
		if w.to == h {
			return w.n
		}
	}
	return 0
}
