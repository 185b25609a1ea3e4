package fabric

import (
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// spinesPerLeaf is how many spines of one leaf count: in a fat tree the leaves
// of a rail share all their spines, so the first few show as much as all.
const spinesPerLeaf = 4

// behind are the switches behind the uplinks of the group's own leaves, and the
// spines among them, one entry per leaf and spine: a switch that nodes with GPUs
// are expected on is a leaf, whichever other leaf it has a cable to. Of several
// nodes that report a leaf the first by name counts, and only one that has a cable
// to that leaf.
func (g *leafGroup) behind(leaves map[string]*leaf, expected map[string]int) (spines, peers []string) {
	for _, own := range g.cabling.own.list {
		var first *node
		for _, l := range leaves[own.id].links {
			n := l.member.owner
			if first != nil && n.Name >= first.Name {
				continue
			}
			if slices.ContainsFunc(n.Report.uplinks(), func(u v1alpha1.Uplink) bool {
				return SwitchID(u.Leaf) == own.id
			}) {
				first = n
			}
		}
		if first == nil {
			continue
		}
		var of []string
		for _, u := range first.Report.uplinks() {
			if peer := SwitchID(u.Peer); SwitchID(u.Leaf) == own.id && peer != own.id && peer != "" {
				of = append(of, peer)
			}
		}
		slices.Sort(of)
		of = slices.Compact(of)
		peers = append(peers, of...)
		of = slices.DeleteFunc(of, func(id string) bool { return expected[id] > 0 })
		spines = append(spines, of[:min(len(of), spinesPerLeaf)]...)
	}
	slices.Sort(spines)
	slices.Sort(peers)
	return spines, slices.Compact(peers)
}

// expect counts the leaves that a group expects nodes on in place of others.
func (b *Builder) expect(was, now []string) {
	if slices.Equal(was, now) {
		return
	}
	for _, id := range was {
		b.expected[id]--
		if b.expected[id] == 0 {
			delete(b.expected, id)
		}
		maps.Copy(b.raised, b.peers[id])
	}
	for _, id := range now {
		b.expected[id]++
		maps.Copy(b.raised, b.peers[id])
	}
}

// meet takes over which switches are behind a group's uplinks.
func (b *Builder) meet(g *leafGroup, peers []string) {
	if slices.Equal(peers, g.peers) {
		return
	}
	for _, id := range g.peers {
		delete(b.peers[id], g)
		if len(b.peers[id]) == 0 {
			delete(b.peers, id)
		}
	}
	g.peers = peers
	for _, id := range peers {
		if b.peers[id] == nil {
			b.peers[id] = set[*leafGroup]{}
		}
		b.peers[id].add(g)
	}
}

// raise brings up to date to which spines a leaf group has links.
func (b *Builder) raise(g *leafGroup) {
	spines, peers := g.behind(b.leaves.switches, b.expected)
	b.meet(g, peers)
	if slices.Equal(spines, g.spines) {
		return
	}
	g.spines = spines
	links := make([]link[*leafGroup], len(spines))
	for i, id := range spines {
		links[i].to = b.spines.at(id)
	}
	b.spines.set(&g.member, links, false)
}

// groupLeafGroups moves leaf groups between groups of spines.
func (b *Builder) groupLeafGroups() {
	for _, moved := range b.spines.vote().moved {
		g := moved.member.owner
		if moved.was == g.member.group {
			continue
		}
		g.spineKey = string(keySwitch) + g.member.group
		b.tree.move(g.members...)
	}
}
