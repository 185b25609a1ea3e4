package placement

import (
	"sync"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

const kindNode = v1alpha1.KindNode

// None is the ID of no node.
const None int32 = -1

// Tree is the topology of a cluster in the form that plans need. It never
// changes, and is safe for concurrent use.
//
// A node's ID is its place in the tree: the nodes of every group, and of every
// group of groups, have consecutive IDs. Nodes in no group come last.
type Tree struct {
	names    []string
	statuses []string
	ids      map[string]int32
	// home is each node's lowest group; 0 if it has none.
	home []int32
	// groups are in preorder; groups[0] is the root with all groups.
	groups []group
	// kinds are those of groups; their indexes are the bits of group.around.
	kinds []string
	tiers []int
	// grouped is how many nodes are in a group.
	grouped int32
	// searches are buffers of finished plans: without them a plan on 100,000
	// nodes allocates megabytes.
	searches sync.Pool
}

// group is an inner element of the tree.
type group struct {
	name   string
	kind   int32 // -1 for the root
	tier   int32
	parent int32
	// next is one past the last group inside; the first child, if it has
	// groups, is the next one.
	next        int32
	first, last int32 // its nodes: last is one past
	// around are the kinds of the group and of all around it.
	around uint64
	// lowest is true if its children are nodes.
	lowest bool
	// remainder is true if it is not in the topology: the nodes that stand
	// beside groups in their parent.
	remainder bool
}

// Group is a group of nodes.
type Group struct {
	Name, Kind string
	// Tier is how far up the group is: 0 a node, 1 a group of nodes, more for
	// groups of groups. All groups of a kind have the same. The root has one
	// more than the widest kind, and what reaches to nodes in no group one more
	// than that.
	Tier int
	// Parent is the group around it; -1 for the root, and outside the tree.
	Parent int
	// First and End are its nodes: those from First up to End, without it.
	First, End int32
}

// Len is the number of nodes; their IDs are 0 to Len()-1.
func (t *Tree) Len() int { return len(t.names) }

// nodes is Len as an ID.
func (t *Tree) nodes() int32 { return int32(len(t.names)) } //nolint:gosec // At most maxNodes.

// ID is the node of a name.
func (t *Tree) ID(name string) (int32, bool) {
	id, ok := t.ids[name]
	return id, ok
}

// Name is the name of a node.
func (t *Tree) Name(node int32) string { return t.names[node] }

// Status is the status of a node in the topology: Ready, NotReady or Degraded.
func (t *Tree) Status(node int32) string { return t.statuses[node] }

// Kinds are the kinds of groups, the widest first; equally wide ones in the
// order of the topology.
func (t *Tree) Kinds() []string {
	out := make([]string, 0, len(t.kinds))
	for tier := int(t.groups[0].tier); tier > 0; tier-- {
		for i, kind := range t.kinds {
			if t.tiers[i] == tier {
				out = append(out, kind)
			}
		}
	}
	return out
}

// Groups is the number of groups; their indexes are 0 to Groups()-1, and 0 is
// the root, without name and kind.
func (t *Tree) Groups() int { return len(t.groups) }

// Group is the group of an index. Nodes that stand beside groups are a group
// to plan with, which appears as the group around them.
func (t *Tree) Group(i int) Group {
	g := &t.groups[i]
	if g.remainder {
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
	if h := t.home[node]; t.groups[h].remainder {
		return int(t.groups[h].parent)
	}
	return int(t.home[node])
}

// Around is the group of a kind that a node is in.
func (t *Tree) Around(node int32, kind string) (Group, bool) {
	g := t.ancestor(t.home[node], t.bit(kind))
	if g <= 0 {
		return Group{}, false
	}
	return t.Group(int(g)), true
}

// ancestor is the lowest of a group and those around it whose kind has this
// bit; None if none has it.
func (t *Tree) ancestor(g int32, bit uint64) int32 {
	for ; g > 0; g = t.groups[g].parent {
		if 1<<t.groups[g].kind == bit && !t.groups[g].remainder {
			return g
		}
	}
	return None
}

// common is the lowest group that has all nodes from first to last.
func (t *Tree) common(first, last int32) int32 {
	g := t.home[first]
	for last >= t.groups[g].last {
		g = t.groups[g].parent
	}
	return g
}

// bit is the bit of a kind in group.around; 0 if no group is of that kind.
func (t *Tree) bit(kind string) uint64 {
	for i, k := range t.kinds {
		if k == kind {
			return 1 << i
		}
	}
	return 0
}

// Domain is a group of a kind, and how many pods of a class it takes.
type Domain struct {
	Kind, Name string
	Pods       int
}

// LargestFree is, for every kind, the widest first, the group that takes the
// most pods of a class, with fit pods on each node; the first of several. Its
// Pods are the largest gang of one pod a rank that the kind can hold.
func (t *Tree) LargestFree(fit []int32) []Domain {
	pods := make([]int64, len(t.groups))
	t.sum(pods, fit, nil)
	var out []Domain
	for _, kind := range t.Kinds() {
		best, bit := Domain{Kind: kind}, t.bit(kind)
		for i := 1; i < len(t.groups); i++ {
			if g := &t.groups[i]; 1<<g.kind == bit && (best.Name == "" || int(pods[i]) > best.Pods) {
				best.Name, best.Pods = g.name, int(pods[i])
			}
		}
		out = append(out, best)
	}
	return out
}

// sum adds up by group how many pods the nodes take, but for excluded ones.
func (t *Tree) sum(pods []int64, fit []int32, excluded []bool) {
	clear(pods)
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := &t.groups[i]
		if g.lowest {
			for node := g.first; node < g.last; node++ {
				if excluded == nil || !excluded[node] {
					pods[i] += int64(max(fit[node], 0))
				}
			}
		}
		if g.parent >= 0 {
			pods[g.parent] += pods[i]
		}
	}
}
