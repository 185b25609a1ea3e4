package fabric

import (
	"cmp"
	"slices"
	"strings"
)

// wiring describes the cabling of the members of one shape.
type wiring struct {
	*shape
	// members counts them and those that joined, list are the indices of its own; joined is set if one of these is
	// checked by another wiring.
	members int
	list    []int
	joined  bool
	// rails is indexed by position.
	rails []railPorts
	// most is the largest number of ports of one rail on a leaf.
	most map[int32]int32
	// byRail is set if the shape is wired by rail at all, expects if that shows where cables belong.
	byRail, expects bool
}

// railPorts are the ports of a wiring on one rail and plane.
type railPorts struct {
	Rail
	position int32
	leaves   tally[int32]
	// leaf is expected, and agree is how many ports are on it; patterns counts the leaves that are right.
	leaf, agree int32
	patterns    int
	// sure is set if two members disagree and other cables show which one is wrong.
	sure bool
	// dark counts the members with a port that never had a link.
	dark int
	// recent are the newest changes of ports, in seconds since 1970, the newest last.
	recent [few + 1]int64
}

// wiring returns the wiring of a member's shape, and makes it if need be.
func (c *cablingCheck) wiring(m *node) *wiring {
	s := c.whole(m)
	w := c.shapes[s]
	if w == nil {
		w = &wiring{shape: s, most: map[int32]int32{}}
		w.rails = make([]railPorts, len(w.positions))
		for i, at := range w.positions {
			w.rails[i] = railPorts{Rail: Rail{Rail: at / maxPlane, Plane: at % maxPlane}, position: at}
		}
		c.shapes[s] = w
	}
	return w
}

// rail returns the rail of a position, an empty one if the shape has none there.
func (w *wiring) rail(position int32) *railPorts {
	if at, found := slices.BinarySearch(w.positions, position); found {
		return &w.rails[at]
	}
	return &railPorts{}
}

// count fills the rails and the group's own leaves.
func (c *cablingCheck) count() {
	for _, m := range c.members {
		c.alike[m.links.shape]++
	}
	for n, m := range c.members {
		w := c.wiring(m)
		w.list = append(w.list, n)
		w.count(m.links.ports)
		for i := range m.links.ports {
			if p := &m.links.ports[i]; p.leaf != 0 && p.far.Value().Name != "" {
				names := c.names[p.leaf]
				names.add(p.far.Value().Name, 1)
				c.names[p.leaf] = names
			}
		}
	}
	for _, w := range c.shapes {
		for i := range w.rails {
			for _, l := range w.rails[i].leaves.list {
				if c.stray(l.value) == nil {
					c.own.add(l.value, l.n)
				}
			}
		}
	}
}

// count adds the ports of a member.
func (w *wiring) count(ports []port) {
	w.members++
	for i := range ports {
		p := &ports[i]
		r := w.rail(p.position)
		if p.leaf != 0 {
			r.leaves.add(p.leaf, 1)
		}
		if p.since > r.recent[0] {
			r.recent[0] = p.since
			slices.Sort(r.recent[:])
		}
		if p.neverUp() && (i == 0 || ports[i-1].position != r.position) { // Sorted: one rail's are neighbors.
			r.dark++
		}
	}
}

// fits reports whether a rail is one of those that a shape usually has at a leaf: at least half as many ports as the
// rail with the most.
func (w *wiring) fits(leaf int32, r *railPorts) bool {
	return 2*r.leaves.count(leaf) >= w.most[leaf] && w.most[leaf] > 0
}

// isPattern reports whether enough members have a rail on a leaf to make it right for all of them: three, and one in
// twelve.
func (w *wiring) isPattern(leaf int32, r *railPorts) bool {
	n := r.leaves.count(leaf)
	return n > few && 12*int(n) >= w.members && w.fits(leaf, r)
}

// expect decides which leaf is right at each rail, and whether the shape is wired by rail.
func (c *cablingCheck) expect(w *wiring) {
	agree, total := int32(0), int32(0)
	for i := range w.rails {
		for _, l := range w.rails[i].leaves.list {
			w.most[l.value] = max(w.most[l.value], l.n)
		}
	}
	for i := range w.rails {
		r, right := &w.rails[i], int32(0)
		for _, l := range r.leaves.list {
			switch {
			case w.isPattern(l.value, r):
				right, r.patterns = right+l.n, r.patterns+1
			case c.stray(l.value) != nil:
				continue
			}
			better := cmp.Or(cmp.Compare(l.n, r.agree), strings.Compare(c.ids[r.leaf], c.ids[l.value]))
			if total += l.n; w.fits(l.value, r) && better > 0 {
				r.leaf, r.agree = l.value, l.n
			}
		}
		agree += max(right, r.agree)
		if r.leaf != 0 && w.hasGPUs() {
			c.expected = append(c.expected, r.leaf)
		}
	}
	if w.members == few {
		c.decide(w)
	}
	w.byRail = 4*agree >= 3*total
	w.expects = w.hasGPUs() || w.members >= 8 && 8*agree >= 7*total // Of others many must be alike.
}

// decide finds the rails on which two members disagree and one has its cable on a leaf with as many other rails of both
// as any: that one is wrong.
func (c *cablingCheck) decide(w *wiring) {
	var both tally[int32]
	agreed, most := int32(0), int32(0)
	for i := range w.rails {
		if r := &w.rails[i]; r.agree == few {
			both.add(r.leaf, 1)
			agreed, most = agreed+1, max(most, both.count(r.leaf))
		}
	}
	for i := range w.rails {
		r := &w.rails[i]
		for n, l := range r.leaves.list {
			if agreed > few && r.agree == 1 && len(r.leaves.list) == few && c.stray(l.value) == nil &&
				both.count(l.value) < most && both.count(r.leaves.list[1-n].value) == most {
				r.leaf, r.sure = l.value, true
			}
		}
	}
}

// expectations returns the expected leaf of each rail, of nodes with GPUs if the group has any. If two shapes expect
// different leaves behind a rail, the first decides.
func (c *cablingCheck) expectations(all []*wiring) (out []Rail) {
	gpus := slices.ContainsFunc(all, (*wiring).hasGPUs)
	compare := func(r Rail, position int32) int { return cmp.Compare(r.Rail*maxPlane+r.Plane, position) }
	for _, w := range all {
		for i := range w.rails {
			r := &w.rails[i]
			at, found := slices.BinarySearchFunc(out, r.position, compare)
			if r.leaf != 0 && w.hasGPUs() == gpus && !found {
				r.Leaf = c.name(r.leaf)
				out = slices.Insert(out, at, r.Rail)
			}
		}
	}
	return out
}

// join finds the wirings by which the members' cables are checked: those of their shapes or, if most of their cables,
// at least two, agree with those of more nodes with GPUs, of these.
func (c *cablingCheck) join(all []*wiring) {
	for n, own := range all {
		for _, i := range own.list {
			c.like[i] = own
			agrees := func(w *wiring) bool { return w.hasGPUs() && !w.joined && w.agrees(c.members[i].links) }
			if at := slices.IndexFunc(all[:n], agrees); at >= 0 {
				c.like[i], own.joined = all[at], true
				all[at].count(c.members[i].links.ports)
			}
		}
	}
}

// agrees reports whether most of a node's cables are where at least half as many of a wiring's are as anywhere.
func (w *wiring) agrees(n *links) bool {
	agree := 0
	for _, l := range n.ends.links {
		r := w.rail(l.rail)
		if on := r.leaves.count(l.to); on > 0 && 2*on >= r.leaves.count(r.leaves.most(cmp.Compare[int32])) {
			agree++
		}
	}
	fewer, more := min(w.shape.rails, n.shape.rails), max(w.shape.rails, n.shape.rails)
	return agree >= few && 2*agree > len(n.ends.links) && 2*fewer > more
}

// isUnused reports whether a port is one that most like nodes have without a cable, in the group and in the fleet:
// second ports. A leaf that fails does not suggest that: its ports had links, or those of other groups have. Fewer than
// three nodes prove nothing, and nothing is expected of a node without GPUs.
func (w *wiring) isUnused(p *port) bool {
	at, found := slices.BinarySearch(w.positions, p.position)
	return p.neverUp() && (!w.hasGPUs() || w.members > few && found && 2*w.rails[at].dark > w.members && w.unused[at])
}

// missing returns the rails that similar nodes have and this one lacks. A lost HCA shifts the numbers of those behind
// it where rails are numbered by rank: then the cables of those behind it are on leaves that were not theirs, the last
// one's leaf among them, the lost rails are the ones with no port left for them, and the others' numbers prove nothing.
func (w *wiring) missing(n *links) (rails []*railPorts, shifted bool) {
	if n.shape == w.shape || !w.expects {
		return nil, false
	}
	var lacked, strayed []*railPorts
	var elsewhere tally[int32]
	for i := range w.rails {
		if !slices.Contains(n.shape.positions, w.rails[i].position) {
			lacked = append(lacked, &w.rails[i])
		}
	}
	for _, l := range n.ends.links {
		if r := w.rail(l.rail); l.to != r.leaf {
			elsewhere.add(l.to, 1)
			strayed = append(strayed, r)
		}
	}
	reached := func(r *railPorts) bool { return elsewhere.count(r.leaf) > 0 }
	if !w.byRail || !slices.ContainsFunc(lacked, reached) {
		return lacked, false
	}
	lost := slices.DeleteFunc(append(strayed, lacked...), func(r *railPorts) bool {
		elsewhere.add(r.leaf, -1)
		return elsewhere.count(r.leaf) >= 0
	})
	if len(lost) < len(lacked) {
		return lacked, true
	}
	return lost[:len(lacked)], true
}
