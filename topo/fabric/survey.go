package fabric

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// survey has the groups of all nodes and the checks of their cables.
type survey struct {
	groups map[int32]*leafGroup // By anchor.
	votes  *grouping
	// uplinks is the number of the uplinks that the spines follow from.
	uplinks uint64
	// kind is that of leaf groups, names counts the nodes of a group that carry a name of that kind.
	kind  string
	names map[carried]int32
}

// carried is a name that nodes of a group carry.
type carried struct {
	group int32
	name  string
}

// newSurvey groups the nodes, sorted by name, and checks their cables. Groups that are as they were in the last survey
// are not checked again.
func newSurvey(nodes []*node, known *symbols, levels []Level, last *survey) *survey {
	s := &survey{groups: make(map[int32]*leafGroup, len(last.groups)), uplinks: known.uplinks}
	s.votes = known.vote(last.votes)
	if compareShapes(known.shapes, nodes, s.votes) {
		last = &survey{}
	}
	s.remember(nodes, levels)
	s.assign(nodes, known, last)
	var changed []*leafGroup
	for leaf, g := range s.groups {
		was := last.groups[leaf]
		if was != nil && was.print == g.print && len(was.members) == len(g.members) && slices.Equal(was.foreign, g.foreign) {
			g.outcome = was.outcome
			continue
		}
		g.outcome, changed = &outcome{}, append(changed, g)
	}
	block := 0
	if i := slices.IndexFunc(levels, func(l Level) bool { return l.By == ByBlock }); i >= 0 {
		block = levels[i].Nodes
	}
	parallel(len(changed), func(from, to int32) {
		for _, g := range changed[from:to] {
			g.check(known.ids)
			g.cut(block, known.ids)
		}
	})
	if slices.ContainsFunc(levels, func(l Level) bool { return l.By == BySpine }) && !s.keepSpines(last) {
		groupSpines(s.groups, peers(nodes, len(known.ids)), known.ids)
	}
	return s
}

// keepSpines takes over the spines of the last survey, and reports whether they follow from the same leaves and uplinks
// as now.
func (s *survey) keepSpines(last *survey) bool {
	isSame := func(a, b count[int32]) bool { return a.value == b.value }
	for leaf, g := range s.groups {
		was := last.groups[leaf]
		if was == nil || !slices.EqualFunc(g.own.list, was.own.list, isSame) || !slices.Equal(g.expected, was.expected) {
			return false
		}
		g.spine = was.spine
	}
	return s.uplinks == last.uplinks && len(s.groups) == len(last.groups)
}

// assign puts the nodes into leaf groups.
func (s *survey) assign(nodes []*node, known *symbols, last *survey) {
	var g *leafGroup
	for _, n := range nodes {
		leaf, torn := s.votes.group[n.ends], false
		if tied := s.votes.tied[n.ends]; tied != nil {
			last := s.last(n, tied)
			leaf, torn = cmp.Or(last, leaf), last == 0 || s.votes.straddles
		}
		if n.torn != torn {
			n.torn, n.print = torn, newPrint()
		}
		if n.group = nil; leaf == 0 {
			continue
		}
		if g == nil || g.leaf != leaf { // Neighbors by name are in one group.
			g = s.groups[leaf]
		}
		if g == nil {
			g = &leafGroup{leaf: leaf, key: known.ids[leaf], foreign: s.votes.foreign[leaf]}
			if was := last.groups[leaf]; was != nil {
				g.members = make([]*node, 0, len(was.members))
			}
			s.groups[leaf] = g
		}
		n.group, n.index = g, len(g.members)
		g.members = append(g.members, n)
		g.print += n.print
	}
}

// remember counts by group and name the nodes that are not tied.
func (s *survey) remember(nodes []*node, levels []Level) {
	i := slices.IndexFunc(levels, func(l Level) bool { return l.By == ByLeaf })
	if i < 0 || len(s.votes.tied) == 0 {
		return
	}
	s.kind, s.names = levels[i].Kind, map[carried]int32{}
	for _, n := range nodes {
		if e := n.ends; s.votes.tied[e] == nil {
			s.names[carried{s.votes.group[e], n.remembers(s.kind)}]++
		}
	}
}

// last returns the tied group of which most members carry the name that a node carries, 0 for none.
func (s *survey) last(n *node, tied []int32) int32 {
	var members tally[int32]
	if name := n.remembers(s.kind); name != "" {
		for _, group := range tied {
			members.add(group, s.names[carried{group, name}])
		}
	}
	most := members.most(cmp.Compare[int32])
	if members.isTied(most) {
		return 0
	}
	return most
}

// spinesPerLeaf is the number of spines of one leaf that count: in a fat tree the leaves of a rail share all their
// spines, so the first few show as much as all.
const spinesPerLeaf = 4

// groupSpines groups the leaf groups by the spines behind the uplinks of their own leaves. A switch where any group
// expects nodes with GPUs is a leaf, whichever other leaf it has a cable to.
func groupSpines(groups map[int32]*leafGroup, peers [][]int32, ids []string) {
	expected := make([]bool, len(ids))
	for _, g := range groups {
		for _, leaf := range g.expected {
			expected[leaf] = true
		}
	}
	number := make(map[*leafGroup]int32, len(groups)) // Of a group's ends.
	above := voting{ids: ids, switches: make([]junction, len(ids)), known: map[string]*ends{}}
	for _, g := range groups {
		var links []link
		for _, own := range g.own.list {
			n := 0
			for _, peer := range peers[own.value] {
				if n < spinesPerLeaf && !expected[peer] {
					links = append(links, link{to: peer})
					n++
				}
			}
		}
		e := above.connect(links, false)
		above.count(e, 1)
		number[g] = e.number
	}
	spines := above.vote(&grouping{}).group
	for _, g := range groups {
		g.spine = ids[spines[number[g]]]
	}
}

// peers returns the switches behind the uplinks of each leaf, sorted by ID. Of several nodes that report a leaf the
// first by name counts, and only one that has a cable to that leaf.
func peers(nodes []*node, switches int) [][]int32 {
	first, out := make([]*node, switches), make([][]int32, switches)
	for _, n := range nodes {
		for _, u := range n.links.uplinks {
			if first[u.leaf] == nil && n.links.ends.bundles.count(u.leaf) > 0 {
				first[u.leaf] = n
			}
			known := out[u.leaf]
			if first[u.leaf] != n || u.peer == 0 || u.peer == u.leaf || len(known) > 0 && known[len(known)-1] == u.peer {
				continue
			}
			out[u.leaf] = append(known, u.peer)
		}
	}
	return out
}

// UplinkDiscovery assigns the leaves that answer over InfiniBand to the workers that discover their uplinks, by node: a
// Ready node with an active link to the leaf by that source, the same one as long as it stays fit, and the leaves
// spread over the nodes. Every replica assigns alike.
func (b *Builder) UplinkDiscovery() map[string][]string {
	chosen := map[int32]*node{}
	for _, n := range b.order {
		for i := range n.links.ports {
			p := &n.links.ports[i]
			if p.leaf == 0 || !p.active || !n.Ready || p.device.Value().source != v1alpha1.SourceIB {
				continue
			}
			id := b.symbols.ids[p.leaf]
			if o := chosen[p.leaf]; o == nil || rank(id, n.Name) < rank(id, o.Name) { // Of equals the first by name.
				chosen[p.leaf] = n
			}
		}
	}
	out := map[string][]string{}
	for leaf, n := range chosen {
		out[n.Name] = append(out[n.Name], b.symbols.ids[leaf])
	}
	for _, leaves := range out {
		slices.Sort(leaves)
	}
	return out
}

// rank orders the candidates of a leaf, by chance that every replica shares (rendezvous hashing).
func rank(leaf, node string) uint64 {
	sum := sha256.Sum256([]byte(leaf + "/" + node))
	return binary.BigEndian.Uint64(sum[:])
}
