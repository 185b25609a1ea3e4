package fabric

import "slices"

// survey has the groups of all nodes and the checks of their cables.
type survey struct {
	groups map[int32]*leafGroup // By anchor.
	// in and index are each node's leaf group, nil without one, and its number among
	// the members.
	in    []*leafGroup
	index []int
	votes *grouping
}

// newSurvey groups the nodes, sorted by name, and checks their cables. Groups that are
// as they were in the last survey are not checked again.
func newSurvey(nodes []*node, known *symbols, levels []Level, last *survey) *survey {
	s := &survey{groups: map[int32]*leafGroup{}, in: make([]*leafGroup, len(nodes)), index: make([]int, len(nodes))}
	s.assign(nodes, known, last.votes)
	var changed []*leafGroup
	for leaf, g := range s.groups {
		if g.equal(last.groups[leaf]) {
			g.outcome = last.groups[leaf].outcome
			continue
		}
		changed = append(changed, g)
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
	if slices.ContainsFunc(levels, func(l Level) bool { return l.By == BySpine }) {
		groupSpines(s.groups, nodes, known.ids)
	}
	return s
}

// assign puts the nodes into leaf groups.
func (s *survey) assign(nodes []*node, known *symbols, last *grouping) {
	graph, wholes := graphOf(nodes, known)
	s.votes = vote(graph, last)
	for i, n := range nodes {
		leaf := s.votes.group[n.links.ends.number]
		if leaf == 0 {
			continue
		}
		if s.groups[leaf] == nil {
			s.groups[leaf] = &leafGroup{leaf: leaf, key: known.ids[leaf], foreign: s.votes.foreign[leaf]}
		}
		g := s.groups[leaf]
		s.in[i], s.index[i] = g, len(g.members)
		g.members = append(g.members, member{n, n.links, wholes[n.links.shape]})
	}
}

// graphOf has the links of the nodes to leaves, and what each of their shapes is taken
// for.
func graphOf(nodes []*node, known *symbols) (*graph, map[*shape]whole) {
	g := &graph{ids: known.ids, ends: known.ends, members: make([]int32, len(known.ends))}
	shapes := map[*shape]int{}
	for _, n := range nodes {
		g.members[n.links.ends.number]++
		if n.links.shape != nil {
			shapes[n.links.shape]++
		}
	}
	return g, wholes(shapes)
}

// spinesPerLeaf is the number of spines of one leaf that count: in a fat tree the leaves
// of a rail share all their spines, so the first few show as much as all.
const spinesPerLeaf = 4

// groupSpines groups the leaf groups by the spines behind the uplinks of their own
// leaves. A switch where any group expects nodes with GPUs is a leaf, whichever other
// leaf it has a cable to.
func groupSpines(groups map[int32]*leafGroup, nodes []*node, ids []string) {
	expected := make([]bool, len(ids))
	for _, g := range groups {
		for _, leaf := range g.expected {
			expected[leaf] = true
		}
	}
	peers := peers(nodes, len(ids))
	var list []*leafGroup
	above := &graph{ids: ids}
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
		list, above.ends, above.members = append(list, g), append(above.ends, newEnds(links)), append(above.members, 1)
	}
	for i, spine := range vote(above, &grouping{}).group {
		list[i].spine = ids[spine]
	}
}

// peers returns the switches behind the uplinks of each leaf, sorted by ID. Of several
// nodes that report a leaf the first by name counts, and only one that has a cable
// to that leaf.
func peers(nodes []*node, switches int) [][]int32 {
	first, out := make([]*node, switches), make([][]int32, switches)
	for _, n := range nodes {
		for _, u := range n.links.uplinks {
			if first[u.leaf] == nil && n.links.isOn(u.leaf) {
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
