package fabric

import (
	"cmp"
	"slices"
	"strings"
)

// domain is a group of one level of the tree.
type domain struct {
	key
	level int
	// members holds the nodes at any level below, by name; the root holds the nodes without a domain.
	members  []*node
	print    uint64 // Of the members.
	parent   *domain
	children []*domain
	// crosses is set for an NVLink domain that has nodes of several groups of another level, and these have others:
	// neither can hold the other.
	crosses bool
	naming
	shown *Element // Nil if nothing is shown.
}

// key is the identity of a domain in its level: the sort of evidence and its value.
type key struct {
	by byte
	id string
}

// The sorts of evidence of a key, in the order in which names are given.
const (
	keyBlock  = 'b'
	keyNVLink = 'n'
	keyPath   = 'p'
	keySwitch = 's'
)

func (k key) compare(o key) int { return cmp.Or(cmp.Compare(k.by, o.by), strings.Compare(k.id, o.id)) }

func (k key) isNVLink() bool { return k.by == keyNVLink }

// tree has all domains of the nodes.
type tree struct {
	levels []Level
	// domains holds the domains by level and key; root holds the nodes without a group.
	domains []map[key]*domain
	root    *domain
	room    []*Element // For the children of one domain.
}

// newTree finds the domains of the nodes, sorted by name, and what holds each.
func newTree(levels []Level, nodes []*node, last *tree) *tree {
	t := &tree{levels: levels, root: &domain{level: len(levels)}}
	for range levels {
		t.domains = append(t.domains, map[key]*domain{})
	}
	findAliens(nodes)
	before := make([]*domain, len(levels))
	for _, n := range nodes {
		t.join(n, before, last)
	}
	for _, domains := range t.domains {
		for _, d := range domains {
			d.crosses = d.isNVLink() && d.isCut()
		}
	}
	for _, n := range nodes {
		if n.home = n.lowest(); n.home == nil {
			n.home = t.root
			t.root.members = append(t.root.members, n)
		}
	}
	for _, domains := range t.domains {
		for _, d := range domains {
			t.attach(d)
		}
	}
	return t
}

// join puts a node into its domains. before are the domains of the node before.
func (t *tree) join(n *node, before []*domain, last *tree) {
	n.chain, n.dissent = slices.Grow(n.chain[:0], len(t.levels)), 0
	for i := range t.levels {
		k := n.key(t.levels, i)
		if k.id == "" {
			n.chain = append(n.chain, nil)
			continue
		}
		d := before[i]
		if d == nil || d.key != k {
			if d = t.domains[i][k]; d == nil {
				d = &domain{key: k, level: i}
				d.members = make([]*node, 0, len(last.find(d).members))
				t.domains[i][k] = d
			}
			before[i] = d
		}
		d.members, d.print = append(d.members, n), d.print+n.print
		n.chain = append(n.chain, d)
	}
}

// claimed describes who reports an NVLink domain.
type claimed struct {
	nodes    int
	products tally[string]
	groups   tally[*leafGroup]
}

// findAliens finds the nodes that report an NVLink domain of others: with another product than most, or alone in a leaf
// group where another domain has exactly one node too few.
func findAliens(nodes []*node) {
	domains, inside := map[string]claimed{}, map[*leafGroup]tally[string]{}
	for _, n := range nodes {
		if n.alien = false; n.Report.Rest.NVLinkDomain == "" {
			continue
		}
		d, in := domains[n.Report.Rest.NVLinkDomain], inside[n.group]
		d.nodes++
		d.products.add(n.Report.Product(), 1)
		d.groups.add(n.group, 1)
		in.add(n.Report.Rest.NVLinkDomain, 1)
		domains[n.Report.Rest.NVLinkDomain], inside[n.group] = d, in
	}
	for _, n := range nodes {
		domain := n.Report.Rest.NVLinkDomain
		d, in := domains[domain], inside[n.group]
		if d.nodes <= few {
			continue
		}
		product, other := d.products.most(strings.Compare), in.most(strings.Compare)
		n.alien = 2*int(d.products.count(product)) > d.nodes && n.Report.Product() != product ||
			n.group != nil && d.groups.count(n.group) == 1 && other != domain && domains[other].nodes+2 == d.nodes
	}
}

// key returns the key of the node's domain in a level, or an empty key.
func (n *node) key(levels []Level, level int) key {
	switch l := levels[level]; {
	case n.path != nil && n.path[level] != "":
		return key{keyPath, n.path[level]}
	case l.Otherwise && n.path != nil:
	case !n.alien && (l.By == ByNVLink || l.By == ByBlock && n.Report.Rest.NVLinkDomain != ""):
		return key{keyNVLink, n.Report.Rest.NVLinkDomain}
	case n.group == nil:
	case l.By == ByNVLink:
	case l.By == ByLeaf:
		return key{keySwitch, n.group.key}
	case l.By == BySpine:
		return key{keySwitch, n.group.spine}
	case l.By == ByBlock:
		return key{keyBlock, strings.TrimSuffix(n.group.key+"/"+n.group.blocks[n.index], "/")}
	}
	return key{}
}

// isCut reports whether the groups of the other levels have only some of the domain's members each, or others besides.
// A node without a known cable is where the others are.
func (d *domain) isCut() bool {
	var deepest *node // Of the members the one with the lowest group above.
	below := map[*domain]int{}
	for _, p := range d.members {
		if at := p.above(d); at != nil && (deepest == nil || at.level > deepest.above(d).level) {
			deepest = p
		}
		for _, in := range p.chain[d.level+1:] {
			below[in]++
		}
	}
	for in, n := range below {
		if in != nil && !in.isNVLink() && n < len(in.members) {
			return true
		}
	}
	return slices.ContainsFunc(d.members, func(p *node) bool {
		at := p.above(d)
		return at != nil && deepest.chain[at.level] != at
	})
}

// above returns the lowest group of the node above an NVLink domain that is not an NVLink domain.
func (n *node) above(d *domain) *domain {
	for _, above := range slices.Backward(n.chain[:d.level]) {
		if above != nil && !above.isNVLink() {
			return above
		}
	}
	return nil
}

// lowest returns the domain that shows the node, nil for the root.
func (n *node) lowest() *domain {
	for _, d := range slices.Backward(n.chain) {
		if d != nil && !d.crosses {
			return d
		}
	}
	return nil
}

// attach gives a domain its parent: the domain that most members are in at the nearest level above at which any is in
// one. It marks the members with a path that names another one.
func (t *tree) attach(d *domain) {
	if d.crosses {
		return
	}
	d.parent = t.root
	for i := d.level - 1; i >= 0 && d.parent == t.root; i-- {
		var above tally[*domain]
		for _, p := range d.members {
			if in := p.chain[i]; in != nil && !in.crosses {
				above.add(in, 1)
			}
		}
		if len(above.list) > 0 {
			d.parent = above.most(func(a, b *domain) int { return a.compare(b.key) })
		}
	}
	d.parent.children = append(d.parent.children, d)
	if !t.levels[d.level].byPath() || d.parent == t.root {
		return
	}
	for _, p := range d.members {
		if above := p.chain[d.parent.level]; above != nil && above != d.parent {
			p.dissent |= 1 << d.level
		}
	}
}

// compose makes the elements of the domains, the lowest first. What the last tree showed and is equal stays the same.
// It returns what crosses the tree.
func (t *tree) compose(last *tree) (crossing []*Element) {
	for i := range slices.Backward(t.levels) {
		for _, d := range t.domains[i] {
			d.shown = t.element(d, last.find(d))
			if d.crosses && d.shown != nil {
				crossing = append(crossing, d.shown)
			}
		}
	}
	slices.SortFunc(crossing, compareElements)
	return crossing
}

// find returns the domain with the level and key of another tree's domain, or an empty domain.
func (t *tree) find(d *domain) *domain {
	if d.level < len(t.domains) && t.domains[d.level][d.key] != nil {
		return t.domains[d.level][d.key]
	}
	return &domain{}
}

// element returns a domain as the tree shows it: the last element if nothing changed, nil if it has no children.
func (t *tree) element(d, last *domain) *Element {
	t.room = d.shows(t.room[:0])
	var rails []Rail
	if t.levels[d.level].By == ByLeaf && d.by == keySwitch {
		rails = d.members[0].group.rails
	}
	switch was := last.shown; {
	case len(t.room) == 0:
		return nil
	case was != nil && was.Name == d.name && slices.Equal(was.Child, t.room) && slices.Equal(was.Rails, rails):
		return was
	}
	e := &Element{
		Name: d.name, Kind: t.levels[d.level].Kind, Key: d.id, NVLink: d.isNVLink(), Rails: rails,
		Child: slices.Clone(t.room),
	}
	e.summarize()
	return e
}

// shows appends the elements of the domain's children and of its members without another domain below, sorted. For a
// domain that crosses others it appends the elements of all members.
func (d *domain) shows(out []*Element) []*Element {
	for _, p := range d.members {
		if p.home == d || d.crosses {
			out = append(out, p.shown)
		}
	}
	for _, c := range d.children {
		if c.shown != nil {
			out = append(out, c.shown)
		}
	}
	if len(d.children) > 0 { // Nodes are sorted.
		slices.SortFunc(out, compareElements)
	}
	return out
}
