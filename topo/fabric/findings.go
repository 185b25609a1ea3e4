package fabric

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// leafGroup are the nodes with one outcome of vote 4. It exists in every mode, because
// cables are checked by it.
type leafGroup struct {
	// leaf is the anchor, key its ID.
	leaf int32
	key  string
	// members and the leaves foreign to the group are the input of everything below.
	members []*node
	foreign []stray
	// print is the sum of the members' prints, straddles is as in the votes.
	print     uint64
	straddles bool
	*outcome
	// spine is the ID that stands for the groups that share spines with this one, "" if
	// no uplinks are known, above the number of its ends.
	spine string
	above int32
}

// outcome is the result of checking the cables of a leaf group.
type outcome struct {
	// rails are the leaves that the group expects, by rail and plane.
	rails []Rail
	// own counts the links on each leaf of the group; expected counts them on the leaves for nodes
	// with GPUs.
	own      tally[int32]
	expected []int32
	// names counts what the leaves are called.
	names tally[named]
	// findings are the faults of the members, blocks the parts of the group that they
	// are in, in the order of members; "" if the group is not cut.
	findings [][]Finding
	blocks   []string
}

// named is a switch with a name in a report.
type named struct {
	leaf int32
	name string
}

// called returns the names of a leaf in the members' reports.
func (o *outcome) called(leaf int32) *tally[string] {
	var names tally[string]
	for _, c := range o.names.list {
		if c.value.leaf == leaf {
			names.add(c.value.name, c.n)
		}
	}
	return &names
}

// cablingCheck computes what a leaf group expects of its cabling, and then what
// is wrong with that of its members.
type cablingCheck struct {
	*leafGroup
	ids []string // Of switches.
	// alike counts the members that report each shape.
	alike  map[*shape]int
	shapes map[*shape]*wiring
	// patterns are the wirings of enough members to show something, the most members first.
	patterns []*wiring
}

// wiring describes the cabling of the members of one shape.
type wiring struct {
	*known
	// members counts them, rails are by position.
	members int
	rails   []railPorts
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
	// leaf is expected, and agree is how many ports are on it.
	leaf, agree int32
	// dark counts the members with a port that never had a link.
	dark int
	// recent are the newest changes of ports, in seconds since 1970, the newest last.
	recent [few + 1]int64
}

// check fills in what follows from a group's members.
func (g *leafGroup) check(ids []string) {
	c := cablingCheck{leafGroup: g, ids: ids, alike: map[*shape]int{}, shapes: map[*shape]*wiring{}}
	c.count()
	all := slices.SortedFunc(maps.Values(c.shapes), func(a, b *wiring) int {
		return cmp.Or(cmp.Compare(b.members, a.members), a.compare(b.shape))
	})
	for _, w := range all {
		if c.expect(w); w.members > few {
			c.patterns = append(c.patterns, w)
		}
	}
	g.rails = expectations(all)
	g.findings, g.blocks = make([][]Finding, len(g.members)), make([]string, len(g.members))
	for i, m := range g.members {
		g.findings[i] = c.faults(m)
	}
}

// whole returns what is known about the shape that a member has with all its HCAs: its own, unless so
// few members have it that they lost some. Three nodes lose the same only if the fleet has few like them.
func (c *cablingCheck) whole(m *node) *known {
	for _, o := range m.known.wholes {
		with, without := c.alike[o.shape], c.alike[m.known.shape]
		if with <= few && o.lost || isLoss(without, with, o.rails-m.known.rails) && (o.lost || without <= few) {
			return o.known
		}
	}
	return m.known
}

// lacks reports whether the group was built without a port of a shape: most nodes of that and lesser
// shapes lack it.
func (c *cablingCheck) lacks(o *shape, position int32) bool {
	with, all := 0, 0
	for s, n := range c.alike {
		if s == o || s.isPartOf(o) && s.accelerators == o.accelerators {
			if all += n; slices.Contains(s.positions, position) {
				with += n
			}
		}
	}
	return 2*with < all
}

// wiring returns the wiring of a member's shape, and makes it if need be.
func (c *cablingCheck) wiring(m *node) *wiring {
	k := c.whole(m)
	w := c.shapes[k.shape]
	if w == nil {
		w = &wiring{known: k, most: map[int32]int32{}}
		w.rails = make([]railPorts, len(w.positions))
		for i, at := range w.positions {
			w.rails[i] = railPorts{Rail: Rail{Rail: at / maxPlane, Plane: at % maxPlane}, position: at}
		}
		c.shapes[w.shape] = w
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
		c.alike[m.known.shape]++
	}
	for _, m := range c.members {
		c.wiring(m).count(m.links.ports)
		for i := range m.links.ports {
			if p := &m.links.ports[i]; p.leaf != 0 && p.far.Value().Name != "" {
				c.names.add(named{p.leaf, p.far.Value().Name}, 1)
			}
		}
	}
	for _, w := range c.shapes {
		for i := range w.rails {
			for _, l := range w.rails[i].leaves.list {
				if w.most[l.value] = max(w.most[l.value], l.n); c.stray(l.value) == nil {
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

// fits reports whether a rail is one of those that a shape usually has at a leaf: at least half
// as many ports as the rail with the most.
func (w *wiring) fits(leaf int32, r *railPorts) bool {
	return 2*r.leaves.count(leaf) >= w.most[leaf] && w.most[leaf] > 0
}

// isPattern reports whether so many members have a rail on a leaf that it is right for all of them: three,
// and one in twelve.
func (w *wiring) isPattern(leaf int32, r *railPorts) bool {
	n := r.leaves.count(leaf)
	return n > few && 12*int(n) >= w.members && w.fits(leaf, r)
}

// expect decides which leaf is right at each rail, and whether the shape is
// wired by rail.
func (c *cablingCheck) expect(w *wiring) {
	agree, total := int32(0), int32(0)
	for i := range w.rails {
		r, right := &w.rails[i], int32(0)
		for _, l := range r.leaves.list {
			switch {
			case w.isPattern(l.value, r):
				right += l.n
			case c.stray(l.value) != nil:
				continue
			}
			if total += l.n; w.fits(l.value, r) && c.prefers(l.value, l.n, r) {
				r.leaf, r.agree = l.value, l.n
			}
		}
		agree += max(right, r.agree)
		r.Leaf = c.name(r.leaf)
		if r.leaf != 0 && w.hasGPUs() {
			c.expected = append(c.expected, r.leaf)
		}
	}
	w.byRail = 4*agree >= 3*total
	w.expects = w.hasGPUs() && !w.rare || w.members >= 8 && 8*agree >= 7*total // Of others many must be alike.
}

// name returns a leaf as a Switch.
func (c *cablingCheck) name(leaf int32) Switch {
	return Switch{ID: c.ids[leaf], Name: c.called(leaf).most(strings.Compare)}
}

// prefers reports whether a leaf with n of a rail's ports is a better
// expectation than the one that the rail has: more of its ports, more of the
// group's, the lesser ID.
func (c *cablingCheck) prefers(leaf, n int32, r *railPorts) bool {
	if n != r.agree {
		return n > r.agree
	}
	if x, y := c.own.count(leaf), c.own.count(r.leaf); x != y {
		return x > y
	}
	return c.ids[leaf] < c.ids[r.leaf]
}

// expectations returns the expected leaf of each rail, of nodes with GPUs if the group has any. If
// two shapes expect different leaves behind a rail, the first decides.
func expectations(all []*wiring) []Rail {
	if slices.ContainsFunc(all, func(w *wiring) bool { return w.hasGPUs() }) {
		all = slices.DeleteFunc(all, func(w *wiring) bool { return !w.hasGPUs() })
	}
	rails := map[int32]Rail{}
	for _, w := range slices.Backward(all) {
		for i := range w.rails {
			rails[w.rails[i].position] = w.rails[i].Rail
		}
	}
	var out []Rail
	for _, at := range slices.Sorted(maps.Keys(rails)) {
		if rails[at].Leaf != (Switch{}) {
			out = append(out, rails[at])
		}
	}
	return out
}

// faults returns the findings of one member.
func (c *cablingCheck) faults(m *node) []Finding {
	var out []Finding
	w := c.wiring(m)
	missing, shifted := w.missing(m.links)
	like := c.like(m, w)
	for i := range m.links.ports {
		p := &m.links.ports[i]
		if like.isUnused(p) {
			continue
		}
		if kind := c.fault(m, w, like, p, shifted); kind != "" {
			f := p.finding(m.Name, c.ids)
			f.Kind, f.Group = kind, c.key
			if changed := like.rail(p.position).recent[0]; kind == Miscabled && changed > 0 {
				f.Settles = time.Unix(changed, 0).Add(settling)
			}
			if like.expects {
				not := p.leaf
				if kind == Dead {
					not = 0
				}
				f.Expected = c.name(c.nearest(m, like, p.position, not))
			}
			out = append(out, f)
		}
	}
	for _, r := range missing {
		if c.lacks(w.shape, r.position) {
			continue
		}
		out = append(out, Finding{
			Kind: Missing, Node: m.Name, Group: c.key, Rail: r.Rail.Rail, Plane: r.Plane,
			Expected: c.name(c.nearest(m, like, r.position, 0)),
		})
	}
	sortFindings(out)
	return out
}

// like returns the wiring by which a member's cables are checked: of that of its shape and those that
// most of its cables, at least two, agree with, the one with the most members.
func (c *cablingCheck) like(m *node, own *wiring) *wiring {
	for _, w := range c.patterns {
		agree, all := 0, 0
		for i := range m.links.ports {
			if p := &m.links.ports[i]; p.leaf != 0 {
				if all++; w.isPattern(p.leaf, w.rail(p.position)) {
					agree++
				}
			}
		}
		if w == own || w.expects && w.hasGPUs() && agree >= 2 && 2*agree > all {
			return w
		}
	}
	return own
}

// settling is the time after changes of three or more ports of a rail, as when a leaf is replaced, in which the
// reports may not agree yet.
const settling = time.Minute

// isUnused reports whether a port is one that most like nodes have without a
// cable, in the group and in the fleet: second ports. A leaf that fails does not suggest
// that: its ports had links, or those of other groups have. Fewer than three nodes prove nothing, and nothing
// is expected of a node without GPUs.
func (w *wiring) isUnused(p *port) bool {
	at, found := slices.BinarySearch(w.positions, p.position)
	return p.neverUp() && (!w.hasGPUs() || w.members > few && found && 2*w.rails[at].dark > w.members && w.unused[at])
}

// fault returns the fault of a port, "" without one.
func (c *cablingCheck) fault(m *node, own, w *wiring, p *port, shifted bool) Fault {
	r := w.rail(p.position)
	switch {
	case !p.active:
		return Dead
	case p.leaf == 0:
		return Unseen
	case p.leaf == r.leaf || w.isPattern(p.leaf, r) || own.isPattern(p.leaf, own.rail(p.position)):
	case m.torn || p.device.Value().confidence == ambiguous || !c.belongs(m):
	case c.stray(p.leaf) != nil:
		if (w.expects || m.known.hasGPUs() && len(m.links.ends.links) > few) && !c.isBetween(m, p) {
			return Miscabled
		}
	case !w.expects || w.members <= few || !w.byRail || shifted || r.leaf == 0:
	case !w.fits(p.leaf, r) || r.agree > r.leaves.count(p.leaf):
		return Miscabled
	}
	return ""
}

// belongs reports whether more than half of a member's cables are on leaves of which the group, or another one,
// has more than a few.
func (c *cablingCheck) belongs(m *node) bool {
	unknown := 0
	for _, l := range m.links.ends.links {
		known := c.stray(l.to) != nil
		for _, w := range c.patterns {
			known = known || w.most[l.to] > few
		}
		if !known {
			unknown++
		}
	}
	return 2*unknown+1 < max(len(m.links.ends.links), 4) || len(c.members) <= few
}

// isBetween reports whether a cable on a foreign leaf is one of several to one group that are by plan: half of
// the node's or, in a fleet that straddles, two from the usual rails.
func (c *cablingCheck) isBetween(m *node, p *port) bool {
	at, same, usual := c.stray(p.leaf), 0, 0
	for _, l := range m.links.ends.links {
		if o := c.stray(l.to); o != nil && o.group == at.group {
			if same++; o.rail == l.rail {
				usual++
			}
		}
	}
	return same > 1 && 2*same+1 >= len(m.links.ends.links) || c.straddles && at.rail == p.position && usual > 1
}

// stray returns a leaf if it is foreign to the group, else nil.
func (g *leafGroup) stray(leaf int32) *stray {
	for i := range g.foreign {
		if g.foreign[i].to == leaf {
			return &g.foreign[i]
		}
	}
	return nil
}

// nearest returns the leaf where a port belongs that has none or is on another one: of those that are usual
// for its rail the one whose members have the most other cables in common with the node.
func (c *cablingCheck) nearest(m *node, w *wiring, position, not int32) int32 {
	r, usual := w.rail(position), 0
	for _, l := range r.leaves.list {
		if w.isPattern(l.value, r) {
			usual++
		}
	}
	if usual < 2 {
		return r.leaf
	}
	var near tally[int32]
	for _, o := range c.members {
		if o == m || c.wiring(o) != w {
			continue
		}
		for i := range o.links.ports {
			q := &o.links.ports[i]
			if q.position == position && q.leaf != not && w.isPattern(q.leaf, r) {
				n := m.links.alike(o.links)
				near.add(q.leaf, n*n*n) // A few that are much alike show more than many others.
			}
		}
	}
	return cmp.Or(near.most(func(a, b int32) int { return strings.Compare(c.ids[a], c.ids[b]) }), r.leaf)
}

// alike counts the ports that two nodes have on the same leaf.
func (l *links) alike(o *links) (n int32) {
	for _, a := range l.ends.links {
		if slices.Contains(o.ends.links, a) {
			n++
		}
	}
	return n
}

// missing returns the rails that similar nodes have and this one lacks. A lost HCA
// shifts the numbers of those behind it where rails are numbered by rank: then
// the cables of those behind it are on leaves that were not theirs, the last one's
// leaf among them, the lost rails are the ones with no port left for them, and the
// others' numbers prove nothing.
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
	for i := range n.ports {
		if l, r := n.ports[i].leaf, w.rail(n.ports[i].position); l != 0 && l != r.leaf {
			elsewhere.add(l, 1)
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

// finding returns a Finding about a port, without its kind.
func (p *port) finding(node string, ids []string) Finding {
	d := p.device.Value()
	f := Finding{Node: node, HCA: d.hca, ID: d.id, Port: d.number, Rail: d.rail, Plane: d.plane}
	if p.since > 0 {
		f.Since = wellknown.Moment(time.Unix(p.since, 0))
	}
	if p.leaf != 0 {
		f.Found = Switch{ID: ids[p.leaf], Name: p.far.Value().Name, Port: p.switchPort.Value()}
	}
	return f
}

// alone returns the findings of a node in no leaf group, in their order.
func (l *links) alone(node string) []Finding {
	var out []Finding
	for i := range l.ports {
		f := l.ports[i].finding(node, nil)
		f.Kind = Unseen
		if !l.ports[i].active {
			f.Kind = Dead
		}
		out = append(out, f)
	}
	return out
}
