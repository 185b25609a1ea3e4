package fabric

import "slices"

// This file is about which nodes form a leaf group. The votes are in grouping.go, the first
// of them in siblings.go.

// leafGroup are the nodes with one outcome of vote 4. It exists in every mode,
// because cabling is checked by it.
type leafGroup struct {
	key string
	// leafKey and spineKey are the keys of the domains that show the group and
	// the groups that share spines.
	leafKey, spineKey string

	members []*node
	cabling cabling
	// member stands for the group among the spines.
	member member[*leafGroup]
	// spines are those that the votes see, peers all switches behind the uplinks.
	spines, peers []string
}

func newLeafGroup(key string) *leafGroup {
	g := &leafGroup{key: key, leafKey: string(keySwitch) + key}
	g.member.owner = g
	return g
}

// groupNodes moves nodes between leaf groups.
func (b *Builder) groupNodes() {
	out := b.leaves.vote()
	for _, moved := range out.moved {
		n := moved.member.owner
		if key := n.member.group; moved.was != key || n.group == nil && key != "" {
			b.place(n, key)
		}
		if n.group != nil {
			b.groups.add(n.group)
		}
	}
	changed := func(key string) {
		if g := b.leafGroups[key]; g != nil {
			b.groups.add(g)
		}
	}
	for _, key := range out.groups {
		changed(key)
	}
	for _, id := range b.uplinks {
		if l := b.leaves.switches[id]; l != nil {
			for _, v := range l.groups.list {
				changed(v.id)
			}
		}
	}
	b.uplinks = nil
}

// place puts a node into the leaf group with that key, "" for none.
func (b *Builder) place(n *node, key string) {
	if g := n.group; g != nil {
		i, last := slices.Index(g.members, n), len(g.members)-1
		g.members[i] = g.members[last]
		g.members[last] = nil
		g.members = g.members[:last]
		b.groups.add(g)
	}
	n.group, n.block = nil, ""
	if key != "" {
		g := b.leafGroups[key]
		if g == nil {
			g = newLeafGroup(key)
			b.leafGroups[key] = g
		}
		g.members = append(g.members, n)
		n.group = g
	}
	b.tree.move(n)
	b.tree.show(n)
}
