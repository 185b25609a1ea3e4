package planner

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/scheduler/claims"
)

// Node is a node with its pods. It is not changed once made, so that what follows from a node holds as long as
// queries have the same pointer.
type Node struct {
	*corev1.Node
	Pods []*corev1.Pod
	// Allocatable has the resources for pods, Requested the sum of the requests of the node's pods.
	Allocatable, Requested Amounts
	// Claims has the devices for claims, nil without any.
	Claims *claims.Node
}

// NewNode returns a node with pods that are bound to it.
func NewNode(node *corev1.Node, pods ...*corev1.Pod) *Node {
	requested := Amounts{}
	for _, pod := range pods {
		requested.Add(Requests(pod), 1)
	}
	return &Node{Node: node, Pods: pods, Requested: requested, Allocatable: AmountsOf(node.Status.Allocatable)}
}

// SetClaims sets the devices for claims of a new node. Pods that request the extended resource get GPUs by claims where
// the kubelet offers none of it.
func (n *Node) SetClaims(own *claims.Node, extended corev1.ResourceName) {
	if n.Claims = own; own != nil && extended != "" && n.Allocatable[extended] == 0 {
		n.Allocatable[extended] = n.Requested[extended] + own.GPUs
	}
}

// Reservation keeps resources of a node for a pod of a plan that is not bound yet.
type Reservation struct {
	UID types.UID
	// Priority is the pod's. A reservation does not bind pods of a higher priority.
	Priority int32
	Amounts  Amounts
	// Claims are the pod's, nil without any.
	Claims *claims.Demand
	// Waiting is the pod's gang if the node is kept until it has room, nil for a pod of a plan.
	Waiting *Waiting
}

// Reservations is keyed by node. A Reservation does not change once made.
type Reservations map[string][]Reservation

// With returns the reservations and others.
func (r Reservations) With(others Reservations) Reservations {
	if len(others) == 0 {
		return r
	}
	out := maps.Clone(r)
	for node, list := range others {
		out[node] = slices.Concat(out[node], list)
	}
	return out
}

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
	// claims has the demands of the reservations.
	claims []*claims.Demand
	// Waiting is the gang that the node is kept for; nil for none.
	Waiting *Waiting
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
		f.Waiting = cmp.Or(f.Waiting, r.Waiting)
		if r.Claims != nil {
			f.claims = append(f.claims, r.Claims)
		}
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
	switch {
	case c.Claims == nil || n <= 0:
	case f.Waiting != nil:
		n = 0 // Its devices are the same, whatever they are requested by.
	default:
		n = f.node.Claims.Room(f.node.Node, c.Claims, f.claims, n)
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

// Takes reports whether the devices that reservations leave are enough for the claims of a pod.
func (f *Free) Takes(d *claims.Demand) bool {
	return len(f.claims) == 0 || f.node.Claims.Fits(f.node.Node, []*claims.Demand{d}, f.claims)
}

// HasReservations reports whether any reservation counts.
func (f *Free) HasReservations() bool { return len(f.reserved) > 0 }

// Reserved returns how much of a resource is reserved for other pods.
func (f *Free) Reserved(name corev1.ResourceName) int64 { return f.reserved[name] }

// FitsTogether reports whether several pods of each class fit at once.
func (f *Free) FitsTogether(classes []*Class, pods []int32) bool {
	total, demands := Amounts{}, []*claims.Demand(nil)
	for i, n := range pods {
		if n == 0 {
			continue // A gang may have many classes, and a node pods of a few.
		}
		c := classes[i]
		if c.exclusive && n > 1 || c.selector != nil && int64(n)*c.Amounts[c.selector.Resource] > f.selected(c) {
			return false
		}
		total.Add(c.Amounts, int64(n))
		if c.Claims != nil {
			demands = append(demands, slices.Repeat([]*claims.Demand{c.Claims}, int(n))...)
		}
	}
	return f.Lacks(total) == "" && f.node.Claims.Fits(f.node.Node, demands, f.claims)
}

// Left returns how much of a resource is left.
func (f *Free) Left(name corev1.ResourceName) int64 {
	return f.node.Allocatable[name] - f.node.Requested[name] - f.reserved[name] + f.gone[name]
}

// maxClasses bounds the classes in a table.
const maxClasses = 128

// Table caches what follows from the nodes of queries: how many pods of a class fit, the values of labels, the
// places of names. Each call goes through all nodes, and looks only into those that are new: reading thousands of
// nodes takes longer than the plan of a small gang. It is for one goroutine, since scheduling cycles run one after
// another.
type Table struct {
	// nodes has the nodes of the last query, at their places by name; soft counts the nodes with a
	// taint PreferNoSchedule.
	nodes []*Node
	at    map[string]int
	soft  int
	// rows is keyed by class, labels by label; both are in the order of a query's nodes.
	rows   map[Key][]count
	labels map[string][]label
}

// count is how many pods of a class fit on a node, label a node's value of a label.
type count struct {
	node *Node
	fit  int32
}

type label struct {
	node  *Node
	value string
}

// follow takes the nodes of a query, and reports whether they have other names than those before.
func (t *Table) follow(nodes []*Node) (renamed bool) {
	renamed = t.at == nil || len(nodes) != len(t.nodes)
	for i := 0; !renamed && i < len(nodes); i++ {
		if old := t.nodes[i]; old != nodes[i] {
			renamed = old.Name != nodes[i].Name
			t.soft += softTaints(nodes[i]) - softTaints(old)
			t.nodes[i] = nodes[i]
		}
	}
	if !renamed {
		return false
	}
	t.nodes, t.at, t.soft = slices.Clone(nodes), make(map[string]int, len(nodes)), 0
	for i, n := range nodes {
		t.at[n.Name] = i
		t.soft += softTaints(n)
	}
	return true
}

func softTaints(n *Node) int {
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
			return 1
		}
	}
	return 0
}

// Count writes how many pods of a class fit on each node, in the order of Nodes, into the storage of
// into. Reservations cannot matter on a node with nothing free.
func (t *Table) Count(q *Query, c *Class, into []int32) []int32 {
	t.follow(q.Nodes)
	if t.rows == nil || len(t.rows) >= maxClasses && t.rows[c.Key] == nil {
		t.rows = map[Key][]count{}
	}
	counts := slices.Grow(t.rows[c.Key], len(q.Nodes))[:len(q.Nodes)]
	t.rows[c.Key] = counts
	into = into[:0]
	for i, n := range q.Nodes {
		if counts[i].node != n {
			free := Free{node: n}
			counts[i] = count{n, free.Count(c)}
		}
		into = append(into, counts[i].fit)
	}
	recount := func(name string, always bool) {
		if i, ok := t.at[name]; ok && (always || into[i] > 0) {
			free := q.Free(q.Nodes[i])
			into[i] = free.Count(c)
		}
	}
	for name := range q.Reservations {
		recount(name, false)
	}
	for name := range q.Gone {
		recount(name, true)
	}
	return into
}

// Free writes how much of a resource each node has left, likewise, whether or not it takes pods.
func (t *Table) Free(q *Query, name corev1.ResourceName, into []int32) []int32 {
	return t.Count(q, &Class{Key: sha256.Sum256([]byte(name)), Amounts: Amounts{name: 1}, anywhere: true}, into)
}

// values writes the values of a label into a list by the nodes' IDs.
func (t *Table) values(key string, ids []int32, into []string) {
	if t.labels == nil || len(t.labels) >= maxClasses && t.labels[key] == nil {
		t.labels = map[string][]label{}
	}
	values := slices.Grow(t.labels[key], len(t.nodes))[:len(t.nodes)]
	t.labels[key] = values
	for i, n := range t.nodes {
		if values[i].node != n {
			values[i] = label{n, n.Labels[key]}
		}
		into[ids[i]] = values[i].value
	}
}
