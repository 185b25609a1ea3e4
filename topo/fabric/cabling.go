package fabric

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// cabling is the outcome of a leaf group's cabling check.
type cabling struct {
	// rails are what the group expects, by rail and plane; without a leaf if it
	// does not know.
	rails []Rail
	// own are the group's leaves, by the links that end there; leaves are those
	// that it expects nodes with GPUs on, sorted.
	own    votes
	leaves []string
	// findings are the faults of the members, in their order.
	findings [][]Finding
}

// expectations are what the tree shows of the rails.
func (c *cabling) expectations() []Rail {
	return slices.DeleteFunc(slices.Clone(c.rails), func(r Rail) bool { return r.Leaf == (Switch{}) })
}

// cablingCheck computes what a leaf group expects of its cabling, and then what
// is wrong with that of its members.
type cablingCheck struct {
	group  *leafGroup
	own    votes
	shapes map[*shape]*wiring
}

// wiring is how the members of one shape are cabled.
type wiring struct {
	*shape
	// members counts them, rails are by position.
	members int
	rails   []railPorts
	// most is how many ports of one rail are on a leaf, at most.
	most map[*leaf]int32
	// byRail is set if the shape is wired by rail at all.
	byRail bool
}

// railPorts are the ports of a wiring on one rail and plane.
type railPorts struct {
	Rail     // With the leaf that is expected.
	leaves   map[*leaf]int32
	position int32
	// agree is how many ports are on the expected leaf.
	agree int32
	names votes
	// dark counts the members of which the port never had a link.
	dark int
}

func check(g *leafGroup) cabling {
	c := cablingCheck{group: g, shapes: map[*shape]*wiring{}}
	c.count()
	for _, w := range c.shapes {
		c.expect(w)
	}
	c.name()
	out := cabling{own: c.own, rails: c.rails(), leaves: c.leaves(), findings: make([][]Finding, len(g.members))}
	for i, n := range g.members {
		out.findings[i] = c.findings(n)
	}
	return out
}

// wiring is that of a node's shape, made if need be.
func (c *cablingCheck) wiring(n *node) *wiring {
	w := c.shapes[n.shape.whole]
	if w == nil {
		w = &wiring{shape: n.shape.whole, most: map[*leaf]int32{}}
		w.rails = make([]railPorts, len(w.positions))
		for i, at := range w.positions {
			w.rails[i] = railPorts{
				Rail: Rail{Rail: at / maxPlane, Plane: at % maxPlane}, position: at, leaves: map[*leaf]int32{},
			}
		}
		c.shapes[w.shape] = w
	}
	return w
}

// rail is that of a node's i-th port, nearly always the i-th.
func (w *wiring) rail(p *port, i int) *railPorts {
	if i < len(w.rails) && w.rails[i].position == p.position() {
		return &w.rails[i]
	}
	at, _ := slices.BinarySearch(w.positions, p.position())
	return &w.rails[at]
}

// count fills the rails and the group's own leaves.
func (c *cablingCheck) count() {
	for _, n := range c.group.members {
		c.wiring(n).count(n)
	}
	for _, w := range c.shapes {
		for i := range w.rails {
			for l, n := range w.rails[i].leaves {
				if c.foreign(l) {
					continue
				}
				c.own.add(l.id, n)
				w.most[l] = max(w.most[l], n)
			}
		}
	}
}

// count adds the ports of a member.
func (w *wiring) count(n *node) {
	w.members++
	for i := range n.ports {
		p := &n.ports[i]
		r := w.rail(p, i)
		if p.leaf != nil {
			r.leaves[p.leaf]++
		}
		if p.neverUp() && (i == 0 || n.ports[i-1].position() != r.position) { // Sorted: one rail's are neighbors.
			r.dark++
		}
	}
}

func (c *cablingCheck) foreign(l *leaf) bool { return l.groups.foreign(c.group.key) }

// fits reports whether a rail is one of those that a shape usually has at a leaf
// of the group: at least half as many ports as the rail with the most.
func (w *wiring) fits(l *leaf, r *railPorts) bool { return 2*r.leaves[l] >= w.most[l] && w.most[l] > 0 }

// expect decides which leaf is right at each rail, and whether the shape is
// wired by rail.
func (c *cablingCheck) expect(w *wiring) {
	agree, total := int32(0), int32(0)
	for i := range w.rails {
		r := &w.rails[i]
		for l, n := range r.leaves {
			if w.fits(l, r) && c.prefers(l, n, r) {
				r.Leaf.ID, r.agree = l.id, n
			}
			if w.most[l] > 0 {
				total += n
			}
		}
		agree += r.agree
	}
	w.byRail = 4*agree >= 3*total
}

// prefers reports whether a leaf with n of a rail's ports is a better
// expectation than what the rail has: more of its ports, more of the group's,
// the lesser ID.
func (c *cablingCheck) prefers(l *leaf, n int32, r *railPorts) bool {
	if n != r.agree {
		return n > r.agree
	}
	if x, y := c.own.count(l.id), c.own.count(r.Leaf.ID); x != y {
		return x > y
	}
	return l.id < r.Leaf.ID
}

// name gives the expected leaves the names that most of their ports saw.
func (c *cablingCheck) name() {
	for _, n := range c.group.members {
		w := c.shapes[n.shape.whole]
		for i := range n.ports {
			p := &n.ports[i]
			if r := w.rail(p, i); p.leaf != nil && p.leaf.id == r.Leaf.ID && p.far.Name != "" {
				r.names.add(p.far.Name, 1)
			}
		}
	}
	for _, w := range c.shapes {
		for i := range w.rails {
			w.rails[i].Leaf.Name = w.rails[i].names.most()
		}
	}
}

// rails are what the group expects, of nodes with GPUs if it has any: of two
// shapes that expect different leaves behind a rail, what the one with more
// members does.
func (c *cablingCheck) rails() []Rail {
	all := slices.SortedFunc(maps.Values(c.shapes), func(a, b *wiring) int {
		return cmp.Or(cmp.Compare(b.members, a.members), a.compare(b.shape))
	})
	if slices.ContainsFunc(all, func(w *wiring) bool { return w.accelerators != "" }) {
		all = slices.DeleteFunc(all, func(w *wiring) bool { return w.accelerators == "" })
	}
	var out []Rail
	for _, w := range all {
		for i := range w.rails {
			at, found := slices.BinarySearchFunc(out, w.rails[i].position, func(r Rail, position int32) int {
				return cmp.Compare(r.Rail*maxPlane+r.Plane, position)
			})
			if !found {
				out = slices.Insert(out, at, w.rails[i].Rail)
			}
		}
	}
	return out
}

// leaves are those that nodes with GPUs are expected on.
func (c *cablingCheck) leaves() []string {
	var out []string
	for _, w := range c.shapes {
		for i := range w.rails {
			if id := w.rails[i].Leaf.ID; id != "" && w.accelerators != "" {
				out = append(out, id)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// findings are the faults of one member.
func (c *cablingCheck) findings(n *node) []Finding {
	var out []Finding
	w := c.shapes[n.shape.whole]
	missing, shifted := w.missing(n)
	for i := range n.ports {
		p := &n.ports[i]
		r := w.rail(p, i)
		if w.unused(p, r) {
			continue
		}
		if kind := c.fault(w, p, r, shifted); kind != "" {
			f := p.finding(n.Name)
			f.Kind, f.Group = kind, c.group.key
			if w.expects {
				f.Expected = r.Leaf
			}
			out = append(out, f)
		}
	}
	for _, r := range missing {
		out = append(out, Finding{
			Kind: Missing, Node: n.Name, Group: c.group.key, Rail: r.Rail.Rail, Plane: r.Plane, Expected: r.Leaf,
		})
	}
	sortFindings(out)
	return out
}

// neverUp reports whether the node's reports know neither a link of the port nor
// when it went down.
func (p *port) neverUp() bool {
	return p.state != v1alpha1.LinkActive && p.far == nil && p.since == 0
}

// unused reports whether a port is one that most like nodes have without a
// cable: second ports. A leaf that fails is no reason to believe that: its ports
// had links. Fewer than three nodes prove nothing, and nothing is expected of a
// node without GPUs.
func (w *wiring) unused(p *port, r *railPorts) bool {
	return p.neverUp() && (w.accelerators == "" || w.members > few && 2*r.dark > w.members)
}

// fault is what is wrong with a port, "" if nothing is.
func (c *cablingCheck) fault(w *wiring, p *port, r *railPorts, shifted bool) Fault {
	switch {
	case p.state != v1alpha1.LinkActive:
		return Dead
	case p.leaf == nil:
		return Unseen
	case p.leaf.id == r.Leaf.ID || !w.expects:
		return ""
	case c.foreign(p.leaf):
		return Miscabled
	case w.members <= few || !w.byRail || shifted || r.Leaf.ID == "":
		return ""
	case !w.fits(p.leaf, r) || r.agree > r.leaves[p.leaf]:
		return Miscabled
	}
	return ""
}

// missing are the rails that like nodes have and this one lacks. A lost HCA
// shifts the numbers of those behind it where rails are numbered by rank: then
// the cables of those behind it are on leaves that were not theirs, the last one's
// leaf among them, the lost rails are those with no port left for them, and the
// others' numbers prove nothing.
func (w *wiring) missing(n *node) (rails []*railPorts, shifted bool) {
	if n.shape == w.shape || !w.expects {
		return nil, false
	}
	var lacked, strayed []*railPorts
	elsewhere := map[string]int{}
	at := 0
	for i := range w.rails {
		r := &w.rails[i]
		if at == len(n.ports) || n.ports[at].position() != r.position {
			lacked = append(lacked, r)
			continue
		}
		for ; at < len(n.ports) && n.ports[at].position() == r.position; at++ {
			if l := n.ports[at].leaf; l != nil && l.id != r.Leaf.ID {
				elsewhere[l.id]++
				strayed = append(strayed, r)
			}
		}
	}
	reached := func(r *railPorts) bool { return elsewhere[r.Leaf.ID] > 0 }
	if !w.byRail || !slices.ContainsFunc(lacked, reached) {
		return lacked, false
	}
	lost := slices.DeleteFunc(append(strayed, lacked...), func(r *railPorts) bool {
		elsewhere[r.Leaf.ID]--
		return elsewhere[r.Leaf.ID] >= 0
	})
	if len(lost) < len(lacked) {
		return lacked, true
	}
	return lost[:len(lacked)], true
}

func (p *port) finding(node string) Finding {
	f := Finding{Node: node, HCA: p.hca, ID: p.id, Port: p.number, Rail: p.device.rail, Plane: p.plane}
	if p.since > 0 {
		f.Since = wellknown.Moment(time.Unix(p.since, 0))
	}
	if p.leaf != nil {
		f.Found = Switch{ID: p.leaf.id, Name: p.far.Name, Port: p.switchPort.Value()}
	}
	return f
}

// alone are the findings of a node that is in no leaf group.
func (n *node) alone() []Finding {
	var out []Finding
	for i := range n.ports {
		p := &n.ports[i]
		f := p.finding(n.Name)
		f.Kind = Unseen
		if p.state != v1alpha1.LinkActive {
			f.Kind = Dead
		}
		out = append(out, f)
	}
	sortFindings(out)
	return out
}
