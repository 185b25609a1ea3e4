package placement

import (
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Bounds on what a topology may hold; it comes over the network.
const (
	maxDepth = 16
	maxKinds = 64
	maxNodes = 1 << 20
)

// New reads the answer of GET /node_group. A topology that contradicts itself
// is rejected whole: a node or a group that stands in two places, kinds that
// contain each other, an element without name or kind, a node with children.
func New(groups []v1alpha1.Group) (*Tree, error) {
	b := builder{
		tree:  &Tree{ids: map[string]int32{}, groups: []group{{kind: -1, parent: -1}}},
		kinds: map[string]int32{},
		seen:  map[string]bool{},
	}
	if err := b.build(groups); err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	return b.tree, nil
}

type builder struct {
	tree  *Tree
	kinds map[string]int32
	seen  map[string]bool
}

// build adds the groups, then the nodes in no group, which have the last IDs.
func (b *builder) build(groups []v1alpha1.Group) error {
	t := b.tree
	for i := range groups {
		if groups[i].Kind == kindNode {
			continue
		}
		if err := b.group(&groups[i], 0, 1); err != nil {
			return err
		}
	}
	t.grouped = t.nodes()
	b.close(0)
	if err := b.nodes(groups, 0); err != nil {
		return err
	}
	return b.setTiers()
}

// group adds a group and all that is inside.
func (b *builder) group(g *v1alpha1.Group, parent int32, depth int) error {
	kind, err := b.check(g, depth)
	if err != nil {
		return err
	}
	t := b.tree
	around := t.groups[parent].around | 1<<kind
	self := b.open(group{name: g.Name, kind: kind, parent: parent, around: around, lowest: true})
	nodes := 0
	for i := range g.Child {
		if g.Child[i].Kind == kindNode {
			nodes++
			continue
		}
		t.groups[self].lowest = false
		if err := b.group(&g.Child[i], self, depth+1); err != nil {
			return err
		}
	}
	home := self
	if !t.groups[self].lowest && nodes > 0 {
		home = b.open(group{
			name: g.Name, kind: kind, parent: self, around: around, lowest: true, remainder: true,
		})
	}
	if err := b.nodes(g.Child, home); err != nil {
		return err
	}
	b.close(home)
	b.close(self)
	return nil
}

// open begins a group; close ends it behind all groups and nodes so far.
func (b *builder) open(g group) int32 {
	g.first = b.tree.nodes()
	b.tree.groups = append(b.tree.groups, g)
	return int32(len(b.tree.groups) - 1) //nolint:gosec // Every group has a name of its own in memory.
}

func (b *builder) close(g int32) {
	t := b.tree
	t.groups[g].next = int32(len(t.groups)) //nolint:gosec // As above.
	t.groups[g].last = t.nodes()
}

// check rejects what no group can be, and gives its kind a number.
func (b *builder) check(g *v1alpha1.Group, depth int) (int32, error) {
	switch {
	case g.Name == "" || g.Kind == "":
		return 0, fmt.Errorf("a group has the name %.80q and the kind %.80q", g.Name, g.Kind)
	case depth > maxDepth:
		return 0, fmt.Errorf("group %.80q is more than %d groups deep", g.Name, maxDepth)
	case b.seen[g.Kind+"\x00"+g.Name]:
		return 0, fmt.Errorf("%.80s %.80q stands in two places", g.Kind, g.Name)
	}
	b.seen[g.Kind+"\x00"+g.Name] = true
	kind, known := b.kinds[g.Kind]
	if !known {
		if len(b.kinds) == maxKinds {
			return 0, fmt.Errorf("more than %d kinds of groups", maxKinds)
		}
		kind = int32(len(b.kinds)) //nolint:gosec // At most maxKinds.
		b.kinds[g.Kind] = kind
		b.tree.kinds = append(b.tree.kinds, g.Kind)
	}
	return kind, nil
}

// nodes adds the nodes among the children of a group; home is their lowest
// group.
func (b *builder) nodes(children []v1alpha1.Group, home int32) error {
	t := b.tree
	for i := range children {
		n := &children[i]
		if n.Kind != kindNode {
			continue
		}
		_, twice := t.ids[n.Name]
		switch {
		case n.Name == "":
			return errors.New("a node has no name")
		case len(n.Child) > 0:
			return fmt.Errorf("node %.80q has children", n.Name)
		case twice:
			return fmt.Errorf("node %.80q stands in two places", n.Name)
		case len(t.names) == maxNodes:
			return fmt.Errorf("more than %d nodes", maxNodes)
		}
		t.ids[n.Name] = t.nodes()
		t.names = append(t.names, n.Name)
		t.statuses = append(t.statuses, n.Status)
		t.home = append(t.home, home)
	}
	return nil
}

// setTiers numbers the kinds: one more than the highest kind that groups of
// the kind hold.
func (b *builder) setTiers() error {
	t := b.tree
	t.tiers = make([]int, len(t.kinds))
	root := 1
	for i := range t.tiers {
		t.tiers[i] = 1
	}
	// The longest chain of n kinds has n links, so n rounds are enough, unless
	// kinds contain each other.
	for round := 0; t.raise(); round++ {
		if round == len(t.kinds) {
			return errors.New("kinds of groups contain each other")
		}
	}
	for i := range t.groups[1:] {
		g := &t.groups[i+1]
		g.tier = int32(t.tiers[g.kind]) //nolint:gosec // At most maxKinds.
		root = max(root, t.tiers[g.kind]+1)
	}
	t.groups[0].tier = int32(root)
	return nil
}

// raise lifts every kind above those that its groups hold, and returns whether
// one moved.
func (t *Tree) raise() (moved bool) {
	for i := len(t.groups) - 1; i > 0; i-- {
		g := &t.groups[i]
		if outer := t.groups[g.parent].kind; outer >= 0 && !g.remainder && t.tiers[outer] <= t.tiers[g.kind] {
			t.tiers[outer], moved = t.tiers[g.kind]+1, true
		}
	}
	return moved
}
