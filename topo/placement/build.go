package placement

import (
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Bounds on what a map may hold; it comes over the network.
const (
	maxDepth = 16
	maxKinds = 64
	maxNodes = 1 << 20
)

// New reads the answer of GET /node_group. A map that contradicts itself is
// refused whole: a node or a group that stands in two places, kinds that
// contain each other, an element without name or kind, a node with children.
func New(groups []v1alpha1.Group) (*Tree, error) {
	// A map that is larger than this is refused below.
	n := min(countNodes(groups, 0), maxNodes)
	b := builder{
		tree: &Tree{
			ids: make(map[string]int32, n), groups: []group{{kind: -1, parent: -1}},
			names: make([]string, 0, n), statuses: make([]string, 0, n), home: make([]int32, 0, n),
		},
		kinds: map[string]int32{},
		seen:  map[string]bool{},
	}
	var loose []*v1alpha1.Group
	for i := range groups {
		if groups[i].Kind == v1alpha1.KindNode {
			loose = append(loose, &groups[i])
			continue
		}
		if err := b.group(&groups[i], 0, 1); err != nil {
			return nil, fmt.Errorf("map: %w", err)
		}
	}
	t := b.tree
	t.grouped = int32(len(t.names)) //nolint:gosec // At most maxNodes.
	for _, n := range loose {
		if err := b.node(n, 0); err != nil {
			return nil, fmt.Errorf("map: %w", err)
		}
	}
	t.groups[0].end = int32(len(t.groups)) //nolint:gosec // Every group has a name of its own in memory.
	t.groups[0].last = t.grouped
	if err := b.tiers(); err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	return t, nil
}

func countNodes(groups []v1alpha1.Group, depth int) (n int) {
	if depth > maxDepth {
		return 0
	}
	for i := range groups {
		if groups[i].Kind == v1alpha1.KindNode {
			n++
			continue
		}
		n += countNodes(groups[i].Child, depth+1)
	}
	return n
}

// builder is the making of a tree.
type builder struct {
	tree  *Tree
	kinds map[string]int32
	seen  map[string]bool
	// above has bit p of element k if a group of kind k is right inside one of
	// kind p.
	above [maxKinds]uint64
}

// group adds a group and all that is inside.
func (b *builder) group(g *v1alpha1.Group, parent int32, depth int) error {
	kind, err := b.check(g, depth)
	if err != nil {
		return err
	}
	t := b.tree
	self := int32(len(t.groups)) //nolint:gosec // Bounded by memory far below.
	around := &t.groups[parent]
	if around.kind >= 0 {
		b.above[kind] |= 1 << around.kind
	}
	first := int32(len(t.names)) //nolint:gosec // At most maxNodes.
	t.groups = append(t.groups, group{
		name: g.Name, kind: kind, parent: parent, first: first, inside: around.inside | 1<<kind, lowest: true,
	})
	nodes := 0
	for i := range g.Child {
		if g.Child[i].Kind == v1alpha1.KindNode {
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
		home = int32(len(t.groups)) //nolint:gosec // As above.
		t.groups = append(t.groups, group{
			name: g.Name, kind: kind, parent: self, first: int32(len(t.names)), //nolint:gosec // As above.
			inside: t.groups[self].inside, lowest: true, own: true,
		})
	}
	for i := range g.Child {
		if g.Child[i].Kind != v1alpha1.KindNode {
			continue
		}
		if err := b.node(&g.Child[i], home); err != nil {
			return err
		}
	}
	for _, made := range []int32{self, home} {
		t.groups[made].end = int32(len(t.groups)) //nolint:gosec // As above.
		t.groups[made].last = int32(len(t.names)) //nolint:gosec // As above.
	}
	return nil
}

// check refuses what no group can be, and gives its kind a number.
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

// node adds a node; home is its lowest group.
func (b *builder) node(n *v1alpha1.Group, home int32) error {
	t := b.tree
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
	t.ids[n.Name] = int32(len(t.names)) //nolint:gosec // At most maxNodes.
	t.names = append(t.names, n.Name)
	t.statuses = append(t.statuses, n.Status)
	t.home = append(t.home, home)
	return nil
}

// tiers numbers the kinds: one more than the highest kind that groups of the
// kind hold.
func (b *builder) tiers() error {
	t := b.tree
	t.tiers = make([]int, len(t.kinds))
	for i := range t.tiers {
		t.tiers[i] = 1
	}
	// The longest chain of n kinds has n links, so n rounds settle it, unless
	// kinds contain each other.
	for round := 0; b.raise(); round++ {
		if round == len(t.kinds) {
			return errors.New("kinds of groups contain each other")
		}
	}
	highest := 0
	for _, tier := range t.tiers {
		highest = max(highest, tier)
	}
	for i := range t.groups {
		if g := &t.groups[i]; g.kind >= 0 {
			g.tier = int32(t.tiers[g.kind]) //nolint:gosec // At most maxKinds.
		}
	}
	t.groups[0].tier = int32(highest + 1)
	return nil
}

// raise lifts every kind above those it holds, and tells whether one moved.
func (b *builder) raise() (moved bool) {
	t := b.tree
	for kind := range t.kinds {
		for around := range t.kinds {
			if b.above[kind]&(1<<around) != 0 && t.tiers[around] <= t.tiers[kind] {
				t.tiers[around], moved = t.tiers[kind]+1, true
			}
		}
	}
	return moved
}
