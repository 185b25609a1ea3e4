package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Bounds on what a topology may hold; it comes over the network.
const (
	maxDepth = 16
	maxKinds = 64
	maxNodes = 1 << 20
)

// New reads the answer of GET /node_group, and puts those of the nodes that are
// not in it beside its groups. A topology that contradicts itself is rejected
// whole: a node or a group that stands in two places, kinds that contain each
// other, an element without name or kind, a node with children.
func New(groups []v1alpha1.Group, nodes ...string) (*Tree, error) {
	b := builder{
		Tree: &Tree{ids: map[string]int32{}, groups: []group{{kind: -1, parent: -1}}},
		seen: map[[2]string]bool{},
	}
	err := b.addGroups(groups, 0, 1)
	b.grouped = b.nodes()
	b.close(0)
	err = cmp.Or(err, b.addNodes(groups, 0))
	var others []v1alpha1.Group
	for _, name := range nodes {
		if _, in := b.ids[name]; !in {
			others = append(others, v1alpha1.Group{Name: name, Kind: kindNode, Status: v1alpha1.StatusReady})
		}
	}
	// The first error counts.
	err = cmp.Or(err, b.addNodes(others, 0), b.setTiers())
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	return b.Tree, nil
}

type builder struct {
	*Tree
	// seen are the kind and name of groups.
	seen map[[2]string]bool
}

// addGroups adds the groups among the children of a group, and all that is
// inside them.
func (b *builder) addGroups(children []v1alpha1.Group, parent int32, depth int) error {
	for i := range children {
		g := &children[i]
		if g.Kind == kindNode {
			continue
		}
		kind, err := b.check(g, depth)
		if err != nil {
			return err
		}
		self := b.open(g, kind, parent)
		if err := b.addGroups(g.Child, self, depth+1); err != nil {
			return err
		}
		home := self
		if len(b.groups) > int(self)+1 {
			b.groups[self].lowest = false
			if slices.ContainsFunc(g.Child, func(c v1alpha1.Group) bool { return c.Kind == kindNode }) {
				home = b.open(g, kind, self)
				b.groups[home].remainder = true
			}
		}
		if err := b.addNodes(g.Child, home); err != nil {
			return err
		}
		b.close(home)
		b.close(self)
	}
	return nil
}

// open begins a group; close ends it behind all groups and nodes so far.
func (b *builder) open(g *v1alpha1.Group, kind, parent int32) int32 {
	b.groups = append(b.groups, group{
		Group: Group{Name: g.Name, Kind: g.Kind, First: b.nodes()}, kind: kind, parent: parent,
		around: b.groups[parent].around | 1<<kind, lowest: true,
	})
	return int32(len(b.groups) - 1) //nolint:gosec // Every group has its own name in memory.
}

func (b *builder) close(g int32) {
	b.groups[g].next = int32(len(b.groups)) //nolint:gosec // As above.
	b.groups[g].End = b.nodes()
}

// check rejects what no group can be, and gives its kind a number.
func (b *builder) check(g *v1alpha1.Group, depth int) (int32, error) {
	kind, known := slices.Index(b.kinds, g.Kind), [2]string{g.Kind, g.Name}
	switch {
	case g.Name == "" || g.Kind == "":
		return 0, fmt.Errorf("a group has the name %.80q and the kind %.80q", g.Name, g.Kind)
	case depth > maxDepth:
		return 0, fmt.Errorf("group %.80q is more than %d groups deep", g.Name, maxDepth)
	case b.seen[known]:
		return 0, fmt.Errorf("%.80s %.80q stands in two places", g.Kind, g.Name)
	case kind < 0 && len(b.kinds) == maxKinds:
		return 0, fmt.Errorf("more than %d kinds of groups", maxKinds)
	case kind < 0:
		kind, b.kinds = len(b.kinds), append(b.kinds, g.Kind)
	}
	b.seen[known] = true
	return int32(kind), nil //nolint:gosec // Less than maxKinds.
}

// addNodes adds the nodes among the children of a group; home is their lowest
// group.
func (b *builder) addNodes(children []v1alpha1.Group, home int32) error {
	for i := range children {
		n, id := &children[i], b.nodes()
		if n.Kind != kindNode {
			continue
		}
		b.ids[n.Name] = id
		switch {
		case n.Name == "":
			return errors.New("a node has no name")
		case len(n.Child) > 0:
			return fmt.Errorf("node %.80q has children", n.Name)
		case len(b.ids) == len(b.names):
			return fmt.Errorf("node %.80q stands in two places", n.Name)
		case id == maxNodes:
			return fmt.Errorf("more than %d nodes", maxNodes)
		}
		b.names = append(b.names, n.Name)
		b.statuses = append(b.statuses, n.Status)
		b.home = append(b.home, home)
	}
	return nil
}

// setTiers numbers the kinds: one more than the highest kind that groups of
// the kind hold. The longest chain has every kind once, unless kinds contain
// each other.
func (b *builder) setTiers() error {
	tiers := slices.Repeat([]int{1}, len(b.kinds))
	for moved := true; moved; {
		moved = false
		for i := len(b.groups) - 1; i > 0; i-- {
			g := &b.groups[i]
			if outer := b.groups[g.parent].kind; outer >= 0 && !g.remainder && tiers[outer] <= tiers[g.kind] {
				tiers[outer], moved = tiers[g.kind]+1, true
				if tiers[outer] > len(b.kinds) {
					return errors.New("kinds of groups contain each other")
				}
			}
		}
	}
	b.groups[0].Tier = 1 + slices.Max(append(tiers, 0))
	for i := range b.groups[1:] {
		b.groups[i+1].Tier = tiers[b.groups[i+1].kind]
	}
	return nil
}
