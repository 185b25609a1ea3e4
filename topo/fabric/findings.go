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
	foreign []int32
	// print is the sum of the members' prints.
	print uint64
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
	ids    []string // Of switches.
	shapes map[*shape]*wiring
}

// wiring describes the cabling of the members of one shape.
type wiring struct {
	whole
	// members counts them, rails are by position.
	members int
	rails   []railPorts
	// most is the largest number of ports of one rail on a leaf.
	most map[int32]int32
	// byRail is set if the shape is wired by rail at all.
	byRail bool
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
}

// check fills in what follows from a group's members.
func (g *leafGroup) check(ids []string) {
	c := cablingCheck{leafGroup: g, ids: ids, shapes: map[*shape]*wiring{}}
	c.count()
	for _, w := range c.shapes {
		c.expect(w)
	}
	g.rails = c.expectations()
	g.findings, g.blocks = make([][]Finding, len(g.members)), make([]string, len(g.members))
	for i, m := range g.members {
		g.findings[i] = c.faults(m)
	}
}

// wiring returns the wiring of a member's shape, and makes it if need be.
func (c *cablingCheck) wiring(m *node) *wiring {
	w := c.shapes[m.whole.shape]
	if w == nil {
		w = &wiring{whole: m.whole, most: map[int32]int32{}}
		w.rails = make([]railPorts, len(w.positions))
		for i, at := range w.positions {
			w.rails[i] = railPorts{Rail: Rail{Rail: at / maxPlane, Plane: at % maxPlane}, position: at}
		}
		c.shapes[w.shape] = w
	}
	return w
}

// rail returns the rail of a port.
func (w *wiring) rail(p *port) *railPorts {
	at, _ := slices.BinarySearch(w.positions, p.position)
	return &w.rails[at]
}

// count fills the rails and the group's own leaves.
func (c *cablingCheck) count() {
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
				if !slices.Contains(c.foreign, l.value) {
					c.own.add(l.value, l.n)
					w.most[l.value] = max(w.most[l.value], l.n)
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
		r := w.rail(p)
		if p.leaf != 0 {
			r.leaves.add(p.leaf, 1)
		}
		if p.neverUp() && (i == 0 || ports[i-1].position != r.position) { // Sorted: one rail's are neighbors.
			r.dark++
		}
	}
}

// fits reports whether a rail is one of those that a shape usually has at a leaf
// of the group: at least half as many ports as the rail with the most.
func (w *wiring) fits(leaf int32, r *railPorts) bool {
	return 2*r.leaves.count(leaf) >= w.most[leaf] && w.most[leaf] > 0
}

// expect decides which leaf is right at each rail, and whether the shape is
// wired by rail.
func (c *cablingCheck) expect(w *wiring) {
	agree, total := int32(0), int32(0)
	for i := range w.rails {
		r := &w.rails[i]
		for _, l := range r.leaves.list {
			if w.fits(l.value, r) && c.prefers(l.value, l.n, r) {
				r.leaf, r.agree = l.value, l.n
			}
			if w.most[l.value] > 0 {
				total += l.n
			}
		}
		agree += r.agree
		r.Leaf = Switch{ID: c.ids[r.leaf], Name: c.called(r.leaf).most(strings.Compare)}
		if r.leaf != 0 && w.hasGPUs() {
			c.expected = append(c.expected, r.leaf)
		}
	}
	w.byRail = 4*agree >= 3*total
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
// two shapes expect different leaves behind a rail, the shape with more members decides.
func (c *cablingCheck) expectations() []Rail {
	all := slices.SortedFunc(maps.Values(c.shapes), func(a, b *wiring) int {
		return cmp.Or(cmp.Compare(b.members, a.members), a.compare(b.shape))
	})
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
	for i := range m.links.ports {
		p := &m.links.ports[i]
		r := w.rail(p)
		if w.unused(p, r) {
			continue
		}
		if kind := c.fault(w, p, r, shifted); kind != "" {
			f := p.finding(m.Name, c.ids)
			f.Kind, f.Group = kind, c.key
			if w.expects {
				f.Expected = r.Leaf
			}
			out = append(out, f)
		}
	}
	for _, r := range missing {
		out = append(out, Finding{
			Kind: Missing, Node: m.Name, Group: c.key, Rail: r.Rail.Rail, Plane: r.Plane, Expected: r.Leaf,
		})
	}
	sortFindings(out)
	return out
}

// unused reports whether a port is one that most like nodes have without a
// cable: second ports. A leaf that fails does not suggest that: its ports
// had links. Fewer than three nodes prove nothing, and nothing is expected of a
// node without GPUs.
func (w *wiring) unused(p *port, r *railPorts) bool {
	return p.neverUp() && (!w.hasGPUs() || w.members > few && 2*r.dark > w.members)
}

// fault returns the fault of a port, "" without one.
func (c *cablingCheck) fault(w *wiring, p *port, r *railPorts, shifted bool) Fault {
	switch {
	case !p.active:
		return Dead
	case p.leaf == 0:
		return Unseen
	case p.leaf == r.leaf || !w.expects:
		return ""
	case slices.Contains(c.foreign, p.leaf):
		return Miscabled
	case w.members <= few || !w.byRail || shifted || r.leaf == 0:
		return ""
	case !w.fits(p.leaf, r) || r.agree > r.leaves.count(p.leaf):
		return Miscabled
	}
	return ""
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
		if l, r := n.ports[i].leaf, w.rail(&n.ports[i]); l != 0 && l != r.leaf {
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
