package placement

import (
	"sync"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// None is no node.
const None int32 = -1

// Tree is a map of the cluster, made for plans. It never changes, and may be
// read by many at once.
//
// A node's ID is its place in the tree: the nodes of every group, and of every
// group of groups, have consecutive IDs. Nodes in no group come last.
type Tree struct {
	names    []string
	statuses []string
	ids      map[string]int32
	// home is each node's lowest group; 0 if it has none.
	home []int32
	// groups are in preorder; groups[0] is the whole of all groups.
	groups []group
	// kinds are those of groups; their places are the bits of group.inside.
	kinds []string
	tiers []int
	// grouped is how many nodes are in a group.
	grouped  int32
	planners sync.Pool
}

// group is an element of the tree that is no node.
type group struct {
	name   string
	kind   int32 // -1 for the whole
	tier   int32
	parent int32
	// end is one past the last group inside; the first child, if it has
	// groups, is the next one.
	end         int32
	first, last int32 // its nodes: last is one past
	// inside are the kinds of the group and of all around it.
	inside uint64
	// lowest tells that its children are nodes.
	lowest bool
	// own tells that it is not in the map: the nodes that stand beside groups
	// in their parent.
	own bool
}

// Group is a group of nodes.
type Group struct {
	Name, Kind string
	// Tier is how far up the group is: 0 a node, 1 a group of nodes, more for
	// groups of groups. All groups of a kind have the same. The whole of all
	// groups has one more than the widest kind, and what reaches to nodes in
	// no group one more than that.
	Tier int
	// Parent is the group around it; -1 for the whole, and outside the tree.
	Parent int
	// First and End are its nodes: those from First up to End, without it.
	First, End int32
}

// Len is the number of nodes; their IDs are 0 to Len()-1.
func (t *Tree) Len() int { return len(t.names) }

// ID is the node of a name.
func (t *Tree) ID(name string) (int32, bool) {
	id, ok := t.ids[name]
	return id, ok
}

// Name is the name of a node.
func (t *Tree) Name(node int32) string { return t.names[node] }

// Status is what the map says of a node: Ready, NotReady or Degraded.
func (t *Tree) Status(node int32) string { return t.statuses[node] }

// Kinds are the kinds of groups, the widest first; equally wide ones in the
// order of the map.
func (t *Tree) Kinds() []string {
	out := make([]string, 0, len(t.kinds))
	for tier := t.whole(); tier > 0; tier-- {
		for i, kind := range t.kinds {
			if t.tiers[i] == tier {
				out = append(out, kind)
			}
		}
	}
	return out
}

// Groups is the number of groups; their indexes are 0 to Groups()-1, and 0 is
// the whole of all groups, without name and kind.
func (t *Tree) Groups() int { return len(t.groups) }

// Group is the group of an index. Nodes that stand beside groups are a group
// to plan with, which is told as the group around them.
func (t *Tree) Group(i int) Group {
	g := &t.groups[i]
	if g.own {
		g = &t.groups[g.parent]
	}
	out := Group{Name: g.name, Tier: int(g.tier), Parent: int(g.parent), First: g.first, End: g.last}
	if g.kind >= 0 {
		out.Kind = t.kinds[g.kind]
	}
	return out
}

// Home is the index of the lowest group that a node is in; 0 if it is in none.
func (t *Tree) Home(node int32) int {
	if h := t.home[node]; t.groups[h].own {
		return int(t.groups[h].parent)
	}
	return int(t.home[node])
}

// Around is the group of a kind that a node is in.
func (t *Tree) Around(node int32, kind string) (Group, bool) {
	for g := t.home[node]; g > 0; g = t.groups[g].parent {
		if !t.groups[g].own && t.kinds[t.groups[g].kind] == kind {
			return t.Group(int(g)), true
		}
	}
	return Group{}, false
}

// whole is the tier of the whole of all groups.
func (t *Tree) whole() int { return int(t.groups[0].tier) }

// bit is the bit of a kind in group.inside; 0 if no group is of that kind.
func (t *Tree) bit(kind string) uint64 {
	for i, k := range t.kinds {
		if k == kind {
			return 1 << i
		}
	}
	return 0
}

// single is a node as a group.
func (t *Tree) single(node int32) Group {
	return Group{Name: t.names[node], Kind: v1alpha1.KindNode, Parent: -1, First: node, End: node + 1}
}
