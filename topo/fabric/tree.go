package fabric

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// domain is a group of one level of the tree.
type domain struct {
	key
	level int
	// classes have the nodes at any level below, and nodes counts these; the root has the nodes without a domain.
	classes  []*class
	nodes    int
	print    uint64 // Of the nodes.
	parent   *domain
	children []*domain
	// crosses is set for an NVLink domain that has nodes of several groups of another level, and these have others:
	// neither can hold the other.
	crosses bool
	naming
	shown *Element // Nil if nothing is shown.
}

// members returns the nodes.
func (d *domain) members() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for _, c := range d.classes {
			for _, n := range c.members {
				if !yield(n) {
					return
				}
			}
		}
	}
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

// class has the nodes, by name, that are in the same domains because these follow from the same traits.
type class struct {
	traits
	members []*node
	print   uint64 // Of the members.
	// chain holds the domains by level, or nil; home is the domain that shows the members.
	chain [MaxLevels]*domain
	home  *domain
	// dissent are the levels at which other nodes contradict the path, by bit.
	dissent uint32
}

// traits are all that decides which domains a node is in.
type traits struct {
	path   *names
	nvlink string
	group  *leafGroup
	block  string
}

// traits returns the node's.
func (n *node) traits() traits {
	t := traits{path: n.path, group: n.group}
	if !n.alien {
		t.nvlink = n.nvlink
	}
	if n.group != nil && len(n.group.blocks) > 0 {
		t.block = n.group.blocks[n.index]
	}
	return t
}

// tree has all domains of the nodes.
type tree struct {
	levels []Level
	// domains holds the domains by level and key; root holds the nodes without a group.
	domains []map[key]*domain
	root    *domain
	room    []*Element // For the children of one domain.
}

// newTree finds the domains of the nodes, sorted by name, and what holds each.
func newTree(levels []Level, nodes []*node) *tree {
	t := &tree{levels: levels, root: &domain{level: len(levels)}}
	for range levels {
		t.domains = append(t.domains, map[key]*domain{})
	}
	findAliens(nodes)
	classes := classify(nodes)
	for _, c := range classes {
		t.join(c)
	}
	for _, domains := range t.domains {
		for _, d := range domains {
			d.crosses = d.isNVLink() && d.isCut()
		}
	}
	for _, c := range classes {
		if c.home = c.lowest(); c.home == nil {
			c.home = t.root
			t.root.classes = append(t.root.classes, c)
		}
	}
	for _, domains := range t.domains {
		for _, d := range domains {
			t.attach(d)
		}
	}
	return t
}

// classify returns the classes of nodes, in the order of their first nodes.
func classify(nodes []*node) (list []*class) {
	known, c := map[traits]*class{}, &class{}
	for _, n := range nodes {
		if by := n.traits(); len(c.members) == 0 || c.traits != by { // Neighbors by name are in one class.
			if c = known[by]; c == nil {
				c = &class{traits: by}
				list, known[by] = append(list, c), c
			}
		}
		n.class, c.members, c.print = c, append(c.members, n), c.print+n.print
	}
	return list
}

// join puts a class into its domains.
func (t *tree) join(c *class) {
	for i := range t.levels {
		k := c.key(t.levels, i)
		if k.id == "" {
			continue
		}
		d := t.domains[i][k]
		if d == nil {
			d = &domain{key: k, level: i}
			t.domains[i][k] = d
		}
		d.classes, d.nodes, d.print = append(d.classes, c), d.nodes+len(c.members), d.print+c.print
		c.chain[i] = d
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
		if n.alien = false; n.nvlink == "" {
			continue
		}
		d, in := domains[n.nvlink], inside[n.group]
		d.nodes++
		d.products.add(n.Report.Product(), 1)
		d.groups.add(n.group, 1)
		in.add(n.nvlink, 1)
		domains[n.nvlink], inside[n.group] = d, in
	}
	for _, n := range nodes {
		domain := n.nvlink
		d, in := domains[domain], inside[n.group]
		if d.nodes <= few {
			continue
		}
		product, other := d.products.most(strings.Compare), in.most(strings.Compare)
		n.alien = 2*int(d.products.count(product)) > d.nodes && n.Report.Product() != product ||
			n.group != nil && d.groups.count(n.group) == 1 && other != domain && domains[other].nodes+2 == d.nodes
	}
}

// key returns the key of the class's domain in a level, or an empty key.
func (c *class) key(levels []Level, level int) key {
	switch l := levels[level]; {
	case c.path != nil && c.path[level] != "":
		return key{keyPath, c.path[level]}
	case l.Otherwise && c.path != nil:
	case l.By == ByNVLink, l.By == ByBlock && c.nvlink != "":
		return key{keyNVLink, c.nvlink}
	case c.group == nil:
	case l.By == ByLeaf:
		return key{keySwitch, c.group.key}
	case l.By == BySpine:
		return key{keySwitch, c.group.spine}
	case l.By == ByBlock:
		return key{keyBlock, strings.TrimSuffix(c.group.key+"/"+c.block, "/")}
	}
	return key{}
}

// isCut reports whether the groups of the other levels have only some of the domain's nodes each, or others besides.
// A node without a known cable is where the others are.
func (d *domain) isCut() bool {
	var deepest *class // Of the classes the one with the lowest group above.
	below := map[*domain]int{}
	for _, c := range d.classes {
		if at := c.above(d); at != nil && (deepest == nil || at.level > deepest.above(d).level) {
			deepest = c
		}
		for _, in := range c.chain[d.level+1:] {
			below[in] += len(c.members)
		}
	}
	for in, n := range below {
		if in != nil && !in.isNVLink() && n < in.nodes {
			return true
		}
	}
	return slices.ContainsFunc(d.classes, func(c *class) bool {
		at := c.above(d)
		return at != nil && deepest.chain[at.level] != at
	})
}

// above returns the lowest group of the class above an NVLink domain that is not an NVLink domain.
func (c *class) above(d *domain) *domain {
	for _, above := range slices.Backward(c.chain[:d.level]) {
		if above != nil && !above.isNVLink() {
			return above
		}
	}
	return nil
}

// lowest returns the domain that shows the class, nil for the root.
func (c *class) lowest() *domain {
	for _, d := range slices.Backward(c.chain[:]) {
		if d != nil && !d.crosses {
			return d
		}
	}
	return nil
}

// attach gives a domain its parent: the domain that most nodes are in at the nearest level above at which any is in
// one. It marks the classes with a path that names another one.
func (t *tree) attach(d *domain) {
	if d.crosses {
		return
	}
	d.parent = t.root
	for i := d.level - 1; i >= 0 && d.parent == t.root; i-- {
		var above tally[*domain]
		for _, c := range d.classes {
			if in := c.chain[i]; in != nil && !in.crosses {
				above.add(in, int32(len(c.members))) //nolint:gosec // Fewer than 2^31 nodes.
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
	for _, c := range d.classes {
		if above := c.chain[d.parent.level]; above != nil && above != d.parent {
			c.dissent |= 1 << d.level
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
		rails = d.classes[0].group.rails
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

// shows appends the elements of the domain's children and of its nodes without another domain below, sorted. For a
// domain that crosses others it appends the elements of all nodes.
func (d *domain) shows(out []*Element) []*Element {
	for _, c := range d.classes {
		for _, n := range c.members {
			if c.home == d || d.crosses {
				out = append(out, n.shown)
			}
		}
	}
	for _, c := range d.children {
		if c.shown != nil {
			out = append(out, c.shown)
		}
	}
	if len(d.children) > 0 || len(d.classes) > 1 { // The nodes of a class are sorted.
		slices.SortFunc(out, compareElements)
	}
	return out
}
