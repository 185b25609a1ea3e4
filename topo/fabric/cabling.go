package fabric

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// cabling is the outcome of a leaf group's cabling check.
type cabling struct {
	// rails are what the group expects, by rail and plane.
	rails []expected
	// own are the group's leaves, by the links that end there.
	own votes
	// findings are the faults of the members, in their order.
	findings [][]Finding
}

// expected is the leaf that a group expects behind a rail and plane, "" without
// one.
type expected struct {
	rail, plane int32
	leaf, name  string
}

func (e *expected) expectation() Switch { return Switch{ID: e.leaf, Name: e.name} }

// cablingCheck computes what a leaf group expects of its cabling, and then what
// is wrong with that of its members.
type cablingCheck struct {
	group *leafGroup
	rails []railPorts
	// index finds a rail by position; 0 is none.
	index [maxRail * maxPlane]uint16
	own   votes
	// wired is set if the group is wired by rail at all.
	wired  bool
	shapes map[string]*shape
}

// railPorts are the ports of the members on one rail and plane.
type railPorts struct {
	expected
	leaves   map[*leaf]int32
	position int32
	// agree is how many ports are on the expected leaf.
	agree int32
	names votes
}

func check(g *leafGroup) cabling {
	c := cablingCheck{group: g, shapes: map[string]*shape{}}
	c.count()
	c.expect()
	c.countShapes()
	out := cabling{own: c.own, rails: make([]expected, len(c.rails)), findings: make([][]Finding, len(g.members))}
	for i := range c.rails {
		out.rails[i] = c.rails[i].expected
	}
	for i, n := range g.members {
		out.findings[i] = c.findings(n)
	}
	return out
}

func (c *cablingCheck) rail(p *port) *railPorts { return &c.rails[c.index[p.position()]-1] }

// count fills the rails and the group's own leaves.
func (c *cablingCheck) count() {
	for _, n := range c.group.members {
		for i := range n.ports {
			p := &n.ports[i]
			at := &c.index[p.position()]
			if *at == 0 {
				c.rails = append(c.rails, railPorts{
					expected: expected{rail: p.device.rail, plane: p.plane}, position: p.position(), leaves: map[*leaf]int32{},
				})
				*at = uint16(len(c.rails)) //nolint:gosec // At most maxRail * maxPlane.
			}
			if p.leaf != nil {
				c.rails[*at-1].leaves[p.leaf]++
			}
		}
	}
	slices.SortFunc(c.rails, func(a, b railPorts) int { return int(a.position - b.position) })
	for i := range c.rails {
		c.index[c.rails[i].position] = uint16(i + 1)
		for l, n := range c.rails[i].leaves {
			if !c.foreign(l) {
				c.own.add(l.id, n)
			}
		}
	}
}

func (c *cablingCheck) foreign(l *leaf) bool { return l.groups.foreign(c.group.key) }

// fits reports whether the group could expect the leaf at a rail: it is not
// foreign, and no other rail is the usual one there.
func (c *cablingCheck) fits(l *leaf, r *railPorts) bool {
	return (l.usual == noRail || l.usual == r.position) && !c.foreign(l)
}

// expect decides which leaf is right at each rail, and whether the group is
// wired by rail.
func (c *cablingCheck) expect() {
	agree, total := int32(0), int32(0)
	for i := range c.rails {
		r := &c.rails[i]
		for l, n := range r.leaves {
			if c.fits(l, r) && c.prefers(l, n, r) {
				r.leaf, r.agree = l.id, n
			}
			if !c.foreign(l) {
				total += n
			}
		}
		agree += r.agree
	}
	c.wired = 4*agree >= 3*total
	for _, n := range c.group.members {
		for i := range n.ports {
			p := &n.ports[i]
			if r := c.rail(p); p.leaf != nil && p.leaf.id == r.leaf && p.far.Name != "" {
				r.names.add(p.far.Name, 1)
			}
		}
	}
	for i := range c.rails {
		c.rails[i].name = c.rails[i].names.most()
	}
}

// prefers reports whether a leaf with n of a rail's ports is a better
// expectation than what the rail has: more of its ports, more of the group's,
// the lesser ID.
func (c *cablingCheck) prefers(l *leaf, n int32, r *railPorts) bool {
	if n != r.agree {
		return n > r.agree
	}
	if x, y := c.own.count(l.id), c.own.count(r.leaf); x != y {
		return x > y
	}
	return l.id < r.leaf
}

// shape is which rails most nodes of equal hardware have.
type shape struct {
	nodes int
	have  []int
}

func (s *shape) has(rail int) bool { return 2*s.have[rail] > s.nodes }

func (c *cablingCheck) countShapes() {
	for _, n := range c.group.members {
		s := c.shapes[n.Report.shape]
		if s == nil {
			s = &shape{have: make([]int, len(c.rails))}
			c.shapes[n.Report.shape] = s
		}
		s.nodes++
		last := -1
		for i := range n.ports { // Sorted: the ports of one rail are neighbors.
			at := int(c.index[n.ports[i].position()]) - 1
			if at != last {
				s.have[at]++
			}
			last = at
		}
	}
}

// findings are the faults of one member.
func (c *cablingCheck) findings(n *node) []Finding {
	var out []Finding
	missing, shifted := c.missing(n)
	for i := range n.ports {
		p := &n.ports[i]
		r := c.rail(p)
		if kind := c.fault(p, r, shifted); kind != "" {
			f := p.finding(n.Name)
			f.Kind, f.Group, f.Expected = kind, c.group.key, r.expectation()
			out = append(out, f)
		}
	}
	for _, at := range missing {
		r := &c.rails[at]
		out = append(out, Finding{
			Kind: Missing, Node: n.Name, Group: c.group.key,
			Rail: r.rail, Plane: r.plane, Expected: r.expectation(),
		})
	}
	sortFindings(out)
	return out
}

// fault is what is wrong with a port, "" if nothing is.
func (c *cablingCheck) fault(p *port, r *railPorts, shifted bool) Fault {
	switch {
	case p.state != v1alpha1.LinkActive:
		return Dead
	case p.leaf == nil:
		return Unseen
	case p.leaf.id == r.leaf:
		return ""
	case c.foreign(p.leaf):
		return Miscabled
	case c.wired && !shifted && (!c.fits(p.leaf, r) || r.agree > r.leaves[p.leaf]):
		return Miscabled
	}
	return ""
}

// missing are the rails that like nodes have and this one lacks. A lost HCA
// shifts the numbers of those behind it where rails are numbered by rank: then
// the lost one is that with no port on its leaf, and the others' numbers prove
// nothing.
func (c *cablingCheck) missing(n *node) (rails []int, shifted bool) {
	shape := c.shapes[n.Report.shape]
	var lacked []int
	at := 0
	for i := range c.rails {
		for at < len(n.ports) && n.ports[at].position() < c.rails[i].position {
			at++
		}
		has := at < len(n.ports) && n.ports[at].position() == c.rails[i].position
		if !has && shape.has(i) {
			lacked = append(lacked, i)
		}
	}
	if len(lacked) == 0 || !c.wired {
		return lacked, false
	}
	for _, i := range lacked {
		shifted = shifted || n.on(c.rails[i].leaf)
	}
	if !shifted {
		return lacked, false
	}
	var unreached []int
	for i := range c.rails {
		if shape.has(i) && !n.on(c.rails[i].leaf) {
			unreached = append(unreached, i)
		}
	}
	if len(unreached) < len(lacked) {
		return lacked, true
	}
	return unreached[:len(lacked)], true
}

// lastSecond is the end of the year 9999 in UTC; JSON has no later time.
const lastSecond = 253402300799

func (p *port) finding(node string) Finding {
	f := Finding{Node: node, HCA: p.hca, ID: p.id, Port: p.number, Rail: p.device.rail, Plane: p.plane}
	if p.since > 0 && p.since <= lastSecond {
		f.Since = time.Unix(p.since, 0).UTC()
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
