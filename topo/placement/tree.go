package placement

import (
	"math"
	"slices"
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
	// home holds each node's lowest group, or 0.
	home []int32
	// groups are in preorder; groups[0] is the root with all groups.
	groups []group
	// kinds lists the kinds of groups; their indexes are the bits of group.around.
	kinds []string
	// grouped is the number of nodes with a group.
	grouped int32
	// searches are buffers of finished plans: without them a plan on 100,000
	// nodes allocates megabytes.
	searches sync.Pool
}

// Group is a group of nodes.
type Group struct {
	Name, Kind string
	// Tier is the height of the group: 0 for a node, 1 for a group of nodes, more for groups of
	// groups. All groups of a kind have the same tier. The root has one more than the widest kind,
	// and a range with nodes outside all groups one more than that.
	Tier int
	// First and End are its nodes: those from First up to End, without it.
	First, End int32
}

// group is an inner element of the tree.
type group struct {
	Group
	kind   int32 // -1 for the root
	parent int32 // -1 for the root
	// next is one past the last group inside; the first child, if it has
	// groups, is the next one.
	next int32
	// around are the kinds of the group and of all around it.
	around uint64
	// lowest is true if its children are nodes.
	lowest bool
	// remainder is true if it is not in the topology: the nodes that stand
	// beside groups in their parent.
	remainder bool
}

// Len returns the number of nodes; their IDs are 0 to Len()-1.
func (t *Tree) Len() int { return len(t.names) }

// nodes is Len as an ID.
func (t *Tree) nodes() int32 { return int32(len(t.names)) } //nolint:gosec // At most maxNodes.

// ID returns the node of a name.
func (t *Tree) ID(name string) (int32, bool) {
	id, ok := t.ids[name]
	return id, ok
}

// Name returns the name of a node.
func (t *Tree) Name(node int32) string { return t.names[node] }

// Status returns the status of a node in the topology: Ready, NotReady or Degraded.
func (t *Tree) Status(node int32) string { return t.statuses[node] }

// Around returns the groups of the tree that hold all of some nodes, the tightest
// first: the single node, then groups, without the root.
func (t *Tree) Around(nodes ...int32) (out []Group) {
	first, last := bounds(nodes)
	if last == None {
		return nil
	}
	if first == last {
		out = append(out, t.groupOf(nodes))
	}
	for at := t.common(first, last); at > 0; at = t.groups[at].parent {
		out = append(out, t.groups[at].Group)
	}
	return out
}

// bounds returns the first and the last of some nodes. Without nodes the last is None.
func bounds(nodes []int32) (first, last int32) {
	first, last = math.MaxInt32, None
	for _, node := range nodes {
		if node >= 0 {
			first, last = min(first, node), max(last, node)
		}
	}
	return first, last
}

// common returns the lowest group of the topology that has all nodes from first to last;
// the root if none has.
func (t *Tree) common(first, last int32) int32 {
	g := t.home[first]
	for g > 0 && (last >= t.groups[g].End || t.groups[g].remainder) {
		g = t.groups[g].parent
	}
	return g
}

// bit returns the bit of a kind in group.around; 0 if no group is of that kind.
func (t *Tree) bit(kind string) uint64 {
	if i := slices.Index(t.kinds, kind); i >= 0 {
		return 1 << i
	}
	return 0
}

// LargestFree is, for every kind, how many pods of a class the group takes that
// takes the most, with fit pods on each node: the largest gang of one pod a rank
// that the kind can hold.
func (t *Tree) LargestFree(fit []int32) map[string]int {
	pods := make([]int64, len(t.groups))
	t.sum(pods, fit, nil)
	out := make(map[string]int, len(t.kinds))
	for i, n := range pods[1:] {
		kind := t.groups[i+1].Kind
		out[kind] = max(out[kind], int(n))
	}
	return out
}

// sum adds up by group how many pods the nodes take, but for excluded ones.
func (t *Tree) sum(pods []int64, fit []int32, excluded []bool) {
	clear(pods)
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := &t.groups[i]
		if g.lowest {
			for node := g.First; node < g.End; node++ {
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
