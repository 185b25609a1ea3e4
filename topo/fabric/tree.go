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
	// members holds the nodes at any level below, by name; the root holds the nodes without a
	// domain.
	members  []*spot
	print    uint64 // Of the members.
	parent   *domain
	children []*domain
	// crosses is set for an NVLink domain that has nodes of several groups of
	// another level, and these have others: neither can hold the other.
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

// spot is the place of a node in the tree.
type spot struct {
	*node
	// group is the leaf group or nil, and index the node's number in it.
	group *leafGroup
	index int
	// chain holds the node's domains by level, or nil; home is the domain that shows it.
	chain []*domain
	home  *domain
	// dissent are the levels at which other nodes contradict its path, by bit.
	dissent uint32
}

// cabling returns the faults of the node's cables.
func (p *spot) cabling() []Finding {
	if p.group == nil {
		return p.links.alone(p.Name)
	}
	return p.group.findings[p.index]
}

// block returns the part of the leaf group that the node is in, "" if it is not cut.
func (p *spot) block() string {
	if p.group.blocks == nil {
		return ""
	}
	return p.group.blocks[p.index]
}

// tree has all domains of the nodes.
type tree struct {
	levels []Level
	spots  []spot
	// domains holds the domains by level and key; root holds the nodes without a group.
	domains []map[key]*domain
	root    *domain
}

// newTree finds the domains of the nodes, sorted by name, and what holds each.
func newTree(levels []Level, nodes []*node, s *survey) *tree {
	t := &tree{levels: levels, spots: make([]spot, len(nodes)), root: &domain{level: len(levels)}}
	for range levels {
		t.domains = append(t.domains, map[key]*domain{})
	}
	chains, last := make([]*domain, len(nodes)*len(levels)), make([]*domain, len(levels))
	for i, n := range nodes {
		p := &t.spots[i]
		*p = spot{node: n, group: s.in[i], index: s.index[i], chain: chains[i*len(levels) : (i+1)*len(levels)]}
		t.join(p, last)
	}
	for _, domains := range t.domains {
		for _, d := range domains {
			d.crosses = d.isNVLink() && d.isCut()
		}
	}
	for i := range t.spots {
		p := &t.spots[i]
		if p.home = p.lowest(); p.home == nil {
			p.home = t.root
			t.root.members = append(t.root.members, p)
		}
	}
	for _, domains := range t.domains {
		for _, d := range domains {
			t.attach(d)
		}
	}
	return t
}

// join puts a node into its domains. last are the domains of the node before.
func (t *tree) join(p *spot, last []*domain) {
	for i := range t.levels {
		k := p.key(t.levels, i)
		if k.id == "" {
			continue
		}
		if last[i] == nil || last[i].key != k {
			d := t.domains[i][k]
			if d == nil {
				d = &domain{key: k, level: i}
				t.domains[i][k] = d
			}
			last[i] = d
		}
		last[i].members = append(last[i].members, p)
		last[i].print += p.print
		p.chain[i] = last[i]
	}
}

// key returns the key of the node's domain in a level, or an empty key.
func (p *spot) key(levels []Level, level int) key {
	l, nvlink := levels[level], p.nvlink
	switch {
	case p.path != nil && p.path[level] != "":
		return key{keyPath, p.path[level]}
	case l.Otherwise && p.path != nil:
	case l.By == ByNVLink || l.By == ByBlock && nvlink != "":
		return key{keyNVLink, nvlink}
	case p.group == nil:
	case l.By == ByLeaf:
		return key{keySwitch, p.group.key}
	case l.By == BySpine:
		return key{keySwitch, p.group.spine}
	case l.By == ByBlock && p.group.blocks == nil:
		return key{keyBlock, p.group.key}
	case l.By == ByBlock:
		return key{keyBlock, strings.TrimSuffix(p.group.key+"/"+p.block(), "/")}
	}
	return key{}
}

// isCut reports whether the groups of the other levels have only some of the
// domain's members each, or others besides. A node without a known cable is
// where the others are.
func (d *domain) isCut() bool {
	deepest := &domain{level: -1}
	around, below := map[*domain]bool{}, map[*domain]int{}
	for _, p := range d.members {
		if at := p.above(d); at != nil {
			if around[at] = true; at.level > deepest.level {
				deepest = at
			}
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
	for _, p := range d.members { // A group that holds another has members in both.
		if deepest.level >= 0 && p.chain[deepest.level] == deepest {
			for _, at := range p.chain[:d.level] {
				delete(around, at)
			}
		}
	}
	return len(around) > 0
}

// above returns the lowest group of the node above an NVLink domain that is not an
// NVLink domain.
func (p *spot) above(d *domain) *domain {
	for _, above := range slices.Backward(p.chain[:d.level]) {
		if above != nil && !above.isNVLink() {
			return above
		}
	}
	return nil
}

// lowest returns the domain that shows the node, nil for the root.
func (p *spot) lowest() *domain {
	for _, d := range slices.Backward(p.chain) {
		if d != nil && !d.crosses {
			return d
		}
	}
	return nil
}

// attach gives a domain its parent: the domain that most members are in at the
// nearest level above at which any is in one. It marks the members with a path that
// names another one.
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

// compose makes the elements of the domains, the lowest first. What the last tree
// showed and is equal stays the same. It returns what crosses the tree.
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

// forget leaves what the next tree asks for.
func (t *tree) forget() {
	t.spots, t.root = nil, nil
	for _, domains := range t.domains {
		for _, d := range domains {
			d.members, d.children, d.parent = nil, nil, nil
		}
	}
}

// element returns a domain as the tree shows it: the last element if nothing changed,
// nil if it has nothing to show.
func (t *tree) element(d, last *domain) *Element {
	e := &Element{Name: d.name, Kind: t.levels[d.level].Kind, Key: d.id, NVLink: d.isNVLink(), Child: d.shows()}
	if t.levels[d.level].By == ByLeaf && d.by == keySwitch {
		e.Rails = d.members[0].group.rails
	}
	if len(e.Child) == 0 {
		return nil
	}
	if was := last.shown; was != nil && was.Name == e.Name && slices.Equal(was.Child, e.Child) &&
		slices.Equal(was.Rails, e.Rails) {
		return was
	}
	e.summarize()
	return e
}

// shows returns the elements of the domain's children and of its members without another domain
// below, sorted. For a domain that crosses others it returns the elements of all members.
func (d *domain) shows() []*Element {
	out := make([]*Element, 0, len(d.members))
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
