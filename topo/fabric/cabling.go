package fabric

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// cabling is the outcome of a leaf group's cabling check.
type cabling struct {
	// rails are what the group expects, by rail and plane; without a leaf if it
	// does not know.
	rails []Rail
	// own are the group's leaves, by the links that end there.
	own votes
	// findings are the faults of the members, in their order.
	findings [][]Finding
}

// cablingCheck computes what a leaf group expects of its cabling, and then what
// is wrong with that of its members.
type cablingCheck struct {
	group *leafGroup
	rails []railPorts
	// index finds a rail by position; 0 is none.
	index [maxRail * maxPlane]uint16
	own   votes
	// wired is set if the group is wired by rail at all.
	wired bool
	// nodes counts the members by shape.
	nodes votes
}

// railPorts are the ports of the members on one rail and plane.
type railPorts struct {
	Rail     // With the leaf that is expected.
	leaves   map[*leaf]int32
	position int32
	// agree is how many ports are on the expected leaf.
	agree int32
	names votes
	// nodes counts the members with such a port by shape, dark those where it
	// never had a link.
	nodes, dark votes
}

func check(g *leafGroup) cabling {
	c := cablingCheck{group: g}
	c.count()
	c.expect()
	out := cabling{own: c.own, rails: make([]Rail, len(c.rails)), findings: make([][]Finding, len(g.members))}
	for i := range c.rails {
		out.rails[i] = c.rails[i].Rail
	}
	for i, n := range g.members {
		out.findings[i] = c.findings(n)
	}
	return out
}

// rail is a port's, made if need be.
func (c *cablingCheck) rail(p *port) *railPorts {
	at := &c.index[p.position()]
	if *at == 0 {
		c.rails = append(c.rails, railPorts{
			Rail: Rail{Rail: p.device.rail, Plane: p.plane}, position: p.position(), leaves: map[*leaf]int32{},
		})
		*at = uint16(len(c.rails)) //nolint:gosec // At most maxRail * maxPlane.
	}
	return &c.rails[*at-1]
}

// count fills the rails and the group's own leaves.
func (c *cablingCheck) count() {
	for _, n := range c.group.members {
		c.nodes.add(n.Report.shape, 1)
		for i := range n.ports {
			p := &n.ports[i]
			r := c.rail(p)
			if p.leaf != nil {
				r.leaves[p.leaf]++
			}
			if i == 0 || n.ports[i-1].position() != r.position { // Sorted: the ports of one rail are neighbors.
				r.nodes.add(n.Report.shape, 1)
				if p.neverUp() {
					r.dark.add(n.Report.shape, 1)
				}
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
				r.Leaf.ID, r.agree = l.id, n
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
			if r := c.rail(p); p.leaf != nil && p.leaf.id == r.Leaf.ID && p.far.Name != "" {
				r.names.add(p.far.Name, 1)
			}
		}
	}
	for i := range c.rails {
		c.rails[i].Leaf.Name = c.rails[i].names.most()
	}
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

// findings are the faults of one member.
func (c *cablingCheck) findings(n *node) []Finding {
	var out []Finding
	missing, shifted := c.missing(n)
	for i := range n.ports {
		p := &n.ports[i]
		r := c.rail(p)
		if c.unused(n, p, r) {
			continue
		}
		if kind := c.fault(p, r, shifted); kind != "" {
			f := p.finding(n.Name)
			f.Kind, f.Group, f.Expected = kind, c.group.key, r.Leaf
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
// had links. Fewer than three nodes prove nothing.
func (c *cablingCheck) unused(n *node, p *port, r *railPorts) bool {
	like := c.nodes.count(n.Report.shape)
	return like >= 3 && p.neverUp() && 2*r.dark.count(n.Report.shape) > like
}

// fault is what is wrong with a port, "" if nothing is.
func (c *cablingCheck) fault(p *port, r *railPorts, shifted bool) Fault {
	switch {
	case p.state != v1alpha1.LinkActive:
		return Dead
	case p.leaf == nil:
		return Unseen
	case p.leaf.id == r.Leaf.ID:
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
func (c *cablingCheck) missing(n *node) (rails []*railPorts, shifted bool) {
	var usual, lacked []*railPorts
	like := c.nodes.count(n.Report.shape)
	for i := range c.rails {
		r := &c.rails[i]
		if 2*r.nodes.count(n.Report.shape) <= like {
			continue
		}
		usual = append(usual, r)
		if !slices.ContainsFunc(n.ports, func(p port) bool { return p.position() == r.position }) {
			lacked = append(lacked, r)
		}
	}
	reached := func(r *railPorts) bool { return n.on(r.Leaf.ID) }
	if !c.wired || !slices.ContainsFunc(lacked, reached) {
		return lacked, false
	}
	unreached := slices.DeleteFunc(usual, reached)
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
