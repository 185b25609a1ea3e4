package fabric

// settled is what a settle changed.
type settled[T any] struct {
	// moved are the items whose group or whose features changed, with the
	// group they were in before.
	moved []movement[T]
	// claims are the groups to which a leaf has become foreign or its own, or
	// has got another usual rail.
	claims []string
}

type movement[T any] struct {
	item *item[T]
	was  string
}

// settle brings the votes up to date. What does not change stops its part of
// the wave.
func (c *cluster[T]) settle() settled[T] {
	voters := c.anchors()
	homes := c.votes(voters)
	keys := c.homes(homes)
	out := settled[T]{moved: c.keys(keys)}
	out.claims = c.claims(out.moved)
	for _, f := range c.touched {
		f.isTouched = false
		if f.mass == 0 && c.features[f.id] == f {
			delete(c.features, f.id)
		}
	}
	for _, it := range c.moved {
		it.isMoved = false
	}
	c.touched, c.moved = c.touched[:0], c.moved[:0]
	return out
}

// anchors is vote 1, for the touched features and those that share items with
// them. It returns the items that have to vote again.
func (c *cluster[T]) anchors() []*item[T] {
	var again []*feature[T]
	mark := func(f *feature[T]) {
		if !f.inAnchor {
			f.inAnchor = true
			again = append(again, f)
		}
	}
	for _, f := range c.touched {
		mark(f)
		for _, n := range f.near {
			mark(n.feature)
		}
	}
	var voters []*item[T]
	for _, f := range again {
		f.inAnchor = false
		anchor := f.leastSibling()
		if anchor == f.anchor {
			continue
		}
		f.anchor = anchor
		for _, l := range f.links {
			if !l.item.inVote {
				l.item.inVote = true
				voters = append(voters, l.item)
			}
		}
	}
	for _, it := range c.moved {
		if !it.inVote {
			it.inVote = true
			voters = append(voters, it)
		}
	}
	return voters
}

func (f *feature[T]) leastSibling() string {
	least := f.id
	for _, n := range f.near {
		if 2*n.n > f.mass && 2*n.n > n.feature.mass && n.feature.id < least {
			least = n.feature.id
		}
	}
	return least
}

// votes is vote 2. It returns the features whose home may have changed.
func (c *cluster[T]) votes(voters []*item[T]) []*feature[T] {
	var homes []*feature[T]
	mark := func(f *feature[T]) {
		if !f.inHome {
			f.inHome = true
			homes = append(homes, f)
		}
	}
	for _, f := range c.touched {
		mark(f)
	}
	var t tally
	for _, it := range voters {
		it.inVote = false
		t.reset()
		for _, w := range it.weights {
			t.add(w.feature.anchor, w.n)
		}
		vote := t.most()
		if vote == it.vote {
			continue
		}
		it.vote = vote
		for _, w := range it.weights {
			mark(w.feature)
		}
	}
	return homes
}

// homes is vote 3. It returns the items whose group may have changed.
func (c *cluster[T]) homes(homes []*feature[T]) []*item[T] {
	var keys []*item[T]
	mark := func(it *item[T]) {
		if !it.inKey {
			it.inKey = true
			keys = append(keys, it)
		}
	}
	var t tally
	for _, f := range homes {
		f.inHome = false
		t.reset()
		for _, l := range f.links {
			t.add(l.item.vote, l.n)
		}
		home := t.most()
		if home == f.home {
			continue
		}
		f.home = home
		for _, l := range f.links {
			mark(l.item)
		}
	}
	for _, f := range c.touched {
		usual := int32(noHint)
		for _, h := range f.hints {
			if 2*h.n > f.mass {
				usual = h.hint
			}
		}
		if usual == f.usual {
			continue
		}
		f.usual, f.isTurned = usual, true
		for _, l := range f.links {
			mark(l.item)
		}
	}
	for _, it := range c.moved {
		mark(it)
	}
	return keys
}

// keys is vote 4. Among equals it prefers the group on whose leaves the item's
// cables start where they usually do.
func (c *cluster[T]) keys(items []*item[T]) []movement[T] {
	moved := make([]movement[T], 0, len(items))
	var t tally
	for _, it := range items {
		it.inKey = false
		t.reset()
		for _, w := range it.weights {
			t.add(w.feature.home, w.n)
		}
		key := t.most()
		if t.tied(key) {
			key = it.favored(&t)
		}
		if key != it.key || it.isMoved {
			moved = append(moved, movement[T]{it, it.key})
			it.key = key
		}
	}
	return moved
}

// favored are the votes of a tie: where the cables start as they usually do.
func (it *item[T]) favored(t *tally) string {
	most := t.count(t.most())
	var f tally
	for _, v := range t.list {
		if v.n == most {
			f.add(v.id, 1)
		}
	}
	for _, c := range it.cables {
		if c.hint == c.feature.usual && f.count(c.feature.home) > 0 {
			f.add(c.feature.home, 1)
		}
	}
	return f.most()
}

// claims recounts whose cables end where, and returns the groups for which a
// feature has become foreign or has ceased to be, or is used otherwise.
func (c *cluster[T]) claims(moved []movement[T]) []string {
	var again []*feature[T]
	mark := func(f *feature[T]) {
		if !f.inClaim {
			f.inClaim = true
			again = append(again, f)
		}
	}
	for _, f := range c.touched {
		mark(f)
	}
	for _, m := range moved {
		for _, w := range m.item.weights {
			mark(w.feature)
		}
	}
	var turned []string
	for _, f := range again {
		turned = f.reclaim(turned)
	}
	return turned
}

// reclaim recounts one feature and appends the groups that it has turned for.
func (f *feature[T]) reclaim(turned []string) []string {
	var now tally
	for _, l := range f.links {
		now.add(l.item.key, l.n)
	}
	for _, v := range f.claims.list {
		if f.isTurned || f.claims.foreign(v.id) != now.foreign(v.id) {
			turned = append(turned, v.id)
		}
	}
	for _, v := range now.list {
		if f.claims.count(v.id) == 0 && (f.isTurned || now.foreign(v.id)) {
			turned = append(turned, v.id)
		}
	}
	f.claims, f.isTurned, f.inClaim = now, false, false
	return turned
}
