package planner

import (
	"crypto/sha256"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is a node with its pods. It is not changed once made.
type Node struct {
	*corev1.Node
	Pods []*corev1.Pod
	// Allocatable has the resources for pods, Requested the sum of the requests of the node's pods.
	Allocatable, Requested Amounts
	// Generation changes with everything else. No two nodes have the same one.
	Generation int64
}

// NewNode returns a node with pods that are bound to it.
func NewNode(node *corev1.Node, pods ...*corev1.Pod) *Node {
	requested := Amounts{}
	for _, pod := range pods {
		requested.Add(Requests(pod), 1)
	}
	return &Node{Node: node, Pods: pods, Requested: requested, Allocatable: AmountsOf(node.Status.Allocatable)}
}

// Reservation keeps resources of a node for a pod of a plan that is not bound yet.
type Reservation struct {
	UID types.UID
	// Priority is the pod's. A reservation does not bind pods of a higher priority.
	Priority int32
	Amounts  Amounts
}

// Reservations are by node. They are not changed once made.
type Reservations map[string][]Reservation

// Gone are pods of one node that count as gone, and what they free.
type Gone struct {
	UIDs    map[types.UID]bool
	Amounts Amounts
}

// Add adds a pod, and what it requests.
func (g *Gone) Add(pod types.UID, amounts Amounts) {
	if g.UIDs == nil {
		g.UIDs, g.Amounts = map[types.UID]bool{}, Amounts{}
	}
	g.UIDs[pod] = true
	g.Amounts.Add(amounts, 1)
}

// Union joins two sets of pods without common pods.
func (g *Gone) Union(other Gone) Gone {
	out := Gone{maps.Clone(g.UIDs), maps.Clone(g.Amounts)}
	maps.Copy(out.UIDs, other.UIDs)
	out.Amounts.Add(other.Amounts, 1)
	return out
}

// Query asks what is free for a pod or a gang.
type Query struct {
	Nodes        []*Node
	Reservations Reservations
	Priority     int32
	// UID is the pod's own, so that its reservation does not count.
	UID types.UID
	// Gone are pods that count as gone, by node.
	Gone map[string]Gone
}

// Free has the part of a node's resources that a pod can use.
type Free struct {
	node *Node
	// reserved holds the amounts of the reservations, gone the amounts that leaving pods free.
	reserved, gone Amounts
}

// Free returns the free resources of a node. Reservations for pods that are on the node already,
// for pods of a lower priority, and for the pod itself do not count.
func (q *Query) Free(n *Node) Free {
	f := Free{node: n, gone: q.Gone[n.Name].Amounts}
	for _, r := range q.Reservations[n.Name] {
		there := func(p *corev1.Pod) bool { return p.UID == r.UID }
		if r.Priority < q.Priority || r.UID == q.UID || slices.ContainsFunc(n.Pods, there) {
			continue
		}
		if f.reserved == nil {
			f.reserved = Amounts{}
		}
		f.reserved.Add(r.Amounts, 1)
	}
	return f
}

// Count returns how many pods of a class fit.
func (f *Free) Count(c *Class) int32 {
	if c.Obstacle(f.node.Node) != "" {
		return 0
	}
	n := int64(math.MaxInt32)
	for name, value := range c.Amounts {
		n = min(n, f.Left(name)/value)
	}
	if c.selector != nil {
		n = min(n, f.selected(c)/c.Amounts[c.selector.Resource])
	}
	if c.exclusive {
		n = min(n, 1)
	}
	return int32(max(0, n))
}

// selected returns the number of free GPUs that the class's selector accepts: 0 on a node that does
// not publish its free GPUs.
func (f *Free) selected(c *Class) int64 {
	name := c.selector.Resource
	left, err := c.selector.Left(f.node.Node, f.node.Requested[name])
	if err != nil {
		return 0
	}
	return left - f.Reserved(name)
}

// Lacks returns the first resource, by name, that is not enough for a pod; empty if all
// are.
func (f *Free) Lacks(amounts Amounts) corev1.ResourceName {
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		if f.Left(name) < amounts[name] {
			return name
		}
	}
	return ""
}

// HasReservations reports whether any reservation counts.
func (f *Free) HasReservations() bool { return len(f.reserved) > 0 }

// Reserved returns how much of a resource is reserved for other pods.
func (f *Free) Reserved(name corev1.ResourceName) int64 { return f.reserved[name] }

// FitsTogether reports whether several pods of each class fit at once.
func (f *Free) FitsTogether(classes []*Class, pods []int32) bool {
	total := Amounts{}
	for i, n := range pods {
		if n == 0 {
			continue // A gang may have many classes, and a node pods of a few.
		}
		c := classes[i]
		if c.exclusive && n > 1 || c.selector != nil && int64(n)*c.Amounts[c.selector.Resource] > f.selected(c) {
			return false
		}
		total.Add(c.Amounts, int64(n))
	}
	return f.Lacks(total) == ""
}

// Left returns how much of a resource is left.
func (f *Free) Left(name corev1.ResourceName) int64 {
	return f.node.Allocatable[name] - f.node.Requested[name] - f.reserved[name] + f.gone[name]
}

// maxClasses bounds the classes in a table.
const maxClasses = 128

// Table caches how many pods of a class fit on a node. It is for one goroutine, since
// scheduling cycles run one after another.
type Table struct {
	// rows are by class, in the order of a query's nodes.
	rows map[Key][]count
}

// count is valid for a node's generation. The cycle of a PodGroup adds members to a node
// without another generation, so the number of pods counts too.
type count struct {
	generation  int64
	value, pods int32
}

// Count writes how many pods of a class fit on each node, in the order of Nodes, into the
// storage of into. What is equal for every query comes from the cache; reservations cannot
// matter on a node with nothing free.
func (t *Table) Count(q *Query, c *Class, into []int32) []int32 {
	into = into[:0]
	counts := t.row(c.Key, len(q.Nodes))
	for i, n := range q.Nodes {
		_, gone := q.Gone[n.Name]
		at, pods := &counts[i], int32(len(n.Pods)) //nolint:gosec // A node has few.
		if !gone && (at.generation != n.Generation || at.pods != pods) {
			free := Free{node: n}
			*at = count{n.Generation, free.Count(c), pods}
		}
		value := at.value
		if gone || value > 0 && len(q.Reservations[n.Name]) > 0 {
			free := q.Free(n)
			value = free.Count(c)
		}
		into = append(into, value)
	}
	return into
}

// Free writes how much of a resource each node has left, likewise, whether or not it takes pods.
func (t *Table) Free(q *Query, name corev1.ResourceName, into []int32) []int32 {
	return t.Count(q, &Class{Key: sha256.Sum256([]byte(name)), Amounts: Amounts{name: 1}, anywhere: true}, into)
}

// row returns the counts of a class. All rows are dropped when there are too many.
func (t *Table) row(key Key, nodes int) []count {
	if t.rows == nil || len(t.rows) >= maxClasses && t.rows[key] == nil {
		t.rows = map[Key][]count{}
	}
	counts := t.rows[key]
	for len(counts) < nodes {
		counts = append(counts, count{generation: -1})
	}
	t.rows[key] = counts
	return counts
}
