package fabric

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// leafGroup are the nodes with one outcome of vote 4. It exists in every mode, because cables are checked by it.
type leafGroup struct {
	// leaf is the anchor, key its ID.
	leaf int32
	key  string
	// members and the leaves foreign to the group are the input of everything below.
	members []*node
	foreign []stray
	print   uint64 // Of the members.
	*outcome
	// spine is the ID that stands for the groups that share spines with this one, "" if no uplinks are known.
	spine string
}

// outcome is the result of checking the cables of a leaf group.
type outcome struct {
	// rails are the leaves that the group expects, by rail and plane.
	rails []Rail
	// own counts the links on each leaf of the group; expected counts them on the leaves for nodes with GPUs.
	own      tally[int32]
	expected []int32
	// names counts what the leaves are called in the members' reports.
	names map[int32]tally[string]
	// findings are the faults of the members, blocks the parts of the group that they are in, in the order of members.
	// blocks is empty if the group is not cut.
	findings [][]Finding
	blocks   []string
}

// cablingCheck computes what a leaf group expects of its cabling, and then what is wrong with that of its members.
type cablingCheck struct {
	*leafGroup
	ids []string // Of switches.
	// alike counts the members that report each shape.
	alike  map[*shape]int
	shapes map[*shape]*wiring
	// patterns are the wirings of enough members to show something, the most members first.
	patterns []*wiring
	// like are the wirings that the members are checked by.
	like []*wiring
}

// check fills in what follows from a group's members.
func (g *leafGroup) check(ids []string) {
	c := cablingCheck{leafGroup: g, ids: ids, alike: map[*shape]int{}, shapes: map[*shape]*wiring{}}
	c.like = make([]*wiring, len(g.members))
	g.names = map[int32]tally[string]{}
	c.count()
	all := slices.SortedFunc(maps.Values(c.shapes), func(a, b *wiring) int {
		return cmp.Or(cmp.Compare(min(len(b.accelerators), 1), min(len(a.accelerators), 1)),
			cmp.Compare(b.members, a.members), a.compare(b.shape))
	})
	c.join(all)
	for _, w := range all {
		if c.expect(w); w.members > few {
			c.patterns = append(c.patterns, w)
		}
	}
	g.rails = c.expectations(all)
	g.findings = make([][]Finding, len(g.members))
	for i, m := range g.members {
		g.findings[i] = c.faults(m, c.like[i])
	}
}

// whole returns the shape that a member has with all its HCAs: its own, unless so few members have it that they lost
// some. Three nodes lose the same only if the fleet has few like them.
func (c *cablingCheck) whole(m *node) *shape {
	s := m.links.shape
	for _, o := range s.wholes {
		with, without := c.alike[o.shape], c.alike[s]
		if o.gap || with <= few && o.lost || isLoss(without, with, o.rails-s.rails) && (o.lost || without <= few) {
			return o.shape
		}
	}
	return s
}

// lacks reports whether the group was built without a port of a shape: most nodes of that and lesser shapes lack it.
func (c *cablingCheck) lacks(o *shape, position int32) bool {
	with, all := 0, 0
	for s, n := range c.alike {
		if s == o || s.isPartOf(o) {
			if all += n; slices.Contains(s.positions, position) {
				with += n
			}
		}
	}
	return 2*with < all
}

// name returns a leaf as a Switch.
func (c *cablingCheck) name(leaf int32) Switch {
	names := c.names[leaf]
	return Switch{ID: c.ids[leaf], Name: names.most(strings.Compare)}
}

// faults returns the findings of one member.
func (c *cablingCheck) faults(m *node, like *wiring) []Finding {
	var out []Finding
	w := c.wiring(m)
	missing, shifted := w.missing(m.links)
	for i := range m.links.ports {
		p := &m.links.ports[i]
		if kind := c.fault(m, like, p, shifted); kind != "" && !like.isUnused(p) {
			f := p.finding(m.Name, c.ids)
			f.Kind, f.Group = kind, c.key
			if changed := like.rail(p.position).recent[0]; kind == Miscabled && changed > 0 {
				f.Settles = time.Unix(changed, 0).Add(settling)
			}
			if like.expects {
				f.Expected = c.name(c.nearest(m, like, p.position))
			}
			out = append(out, f)
		}
	}
	for _, r := range missing {
		if m.torn || c.isBetween(m, &port{}) || r.position > m.links.shape.last && c.lacks(w.shape, r.position) {
			continue
		}
		out = append(out, Finding{
			Kind: Missing, Node: m.Name, Group: c.key, Rail: r.Rail.Rail, Plane: r.Plane,
			Expected: c.name(c.nearest(m, like, r.position)),
		})
	}
	sortFindings(out)
	return out
}

// settling is the time after changes of three or more ports of a rail, as when a leaf is replaced, in which the reports
// may not agree yet.
const settling = time.Minute

// fault returns the fault of a port, "" without one.
func (c *cablingCheck) fault(m *node, w *wiring, p *port, shifted bool) Fault {
	r := w.rail(p.position)
	switch {
	case !p.active:
		return Dead
	case p.leaf == 0:
		return Unseen
	case p.leaf == r.leaf || w.isPattern(p.leaf, r):
	case m.torn || p.device.Value().confidence == ambiguous || c.isBetween(m, p):
	case c.stray(p.leaf) != nil:
		if w.expects || m.links.shape.hasGPUs() && len(m.links.ends.links) > few {
			return Miscabled
		}
	case len(m.links.ends.links) == 1 && !slices.Contains(c.expected, p.leaf): // The node is here because of it.
	case w.expects && (w.members > few || r.sure) && w.byRail && !shifted && r.leaf != 0 &&
		(!w.fits(p.leaf, r) || r.agree > r.leaves.count(p.leaf) || r.sure):
		return Miscabled
	}
	return ""
}

// isBetween reports whether a cable is one of several that are elsewhere by plan: half of the node's in one other group
// or where hardly another node is or, in a fleet that straddles, two from usual rails of a group's leaves.
func (c *cablingCheck) isBetween(m *node, p *port) bool {
	at, n, usual := c.stray(p.leaf), 0, 0
	for _, l := range m.links.ends.links {
		isCommon := func(w *wiring) bool { return w.most[l.to] > few || 2*int(w.most[l.to]) > w.members }
		switch o := c.stray(l.to); {
		case o == nil && len(c.patterns) > 0 && !slices.ContainsFunc(c.patterns, isCommon) && !isCommon(c.like[m.index]):
			n++
		case o != nil && (at == nil || at.group == o.group):
			if n++; slices.Contains(c.foreign, stray{l.to, o.group, l.rail}) {
				usual++
			}
		}
	}
	return 2*n+1 >= max(len(m.links.ends.links), 4) ||
		at != nil && usual > 1 && slices.Contains(c.foreign, stray{p.leaf, at.group, p.position})
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

// nearest returns the leaf where a port belongs that has none or is on another one: of those that are usual for its
// rail the one whose members have the most other cables in common with the node.
func (c *cablingCheck) nearest(m *node, w *wiring, position int32) int32 {
	r := w.rail(position)
	if r.patterns < 2 {
		return r.leaf
	}
	var near tally[int32]
	for _, o := range c.members {
		if o == m || c.like[o.index] != w {
			continue
		}
		n := int32(0) // Ports that both have on the same leaf.
		for _, l := range m.links.ends.links {
			if slices.Contains(o.links.ends.links, l) {
				n++
			}
		}
		for _, l := range o.links.ends.links {
			if l.rail == position && w.isPattern(l.to, r) {
				near.add(l.to, n*n*n) // A few that are much alike show more than many others.
			}
		}
	}
	return cmp.Or(near.most(func(a, b int32) int { return strings.Compare(c.ids[a], c.ids[b]) }), r.leaf)
}

// finding returns a Finding about a port that is expected to have a link, and nothing more.
func (p *port) finding(node string, ids []string) Finding {
	d := p.device.Value()
	f := Finding{Kind: Unseen, Node: node, HCA: d.hca, ID: d.id, Port: d.number, Rail: d.rail, Plane: d.plane}
	if !p.active {
		f.Kind = Dead
	}
	if p.since > 0 {
		f.Since = wellknown.Moment(time.Unix(p.since, 0))
	}
	if p.leaf != 0 {
		f.Found = Switch{ID: ids[p.leaf], Name: p.far.Value().Name, Port: p.switchPort.Value()}
	}
	return f
}
