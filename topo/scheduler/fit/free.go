package fit

import (
	"crypto/sha256"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/queue"
)

// Reservation is what a gang's plan keeps on a node for a pod that is not there
// yet.
type Reservation struct {
	UID types.UID
	// Priority is the pod's: a reservation does not bind pods of a higher one.
	Priority int32
	Amounts  Amounts
	// Start is zero for a pod that comes now. Else room is reserved in advance: it keeps
	// out what would stay for longer.
	Start time.Time
	// Leaving are pods of the node that are expected to be gone by then.
	Leaving map[types.UID]bool
}

// Asker is who asks what is free.
type Asker struct {
	Priority int32
	// UID is that of a pod of which the own reservation does not count.
	UID types.UID
	// End is when the pod would be gone; zero if that is unknown.
	End time.Time
	// First comes before what is reserved in advance: for a gang that runs in part.
	First bool
	// Gone are pods that count as gone, by node. Ahead asks what will be free when they are,
	// at a later time: all that is reserved in advance is taken by then.
	Gone  map[string]Gone
	Ahead bool
}

// Gone are pods of one node, and what they free.
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

// Union are the pods of all parts; no pod is in two of them.
func Union(parts ...Gone) Gone {
	out := Gone{map[types.UID]bool{}, Amounts{}}
	for _, part := range parts {
		maps.Copy(out.UIDs, part.UIDs)
		out.Amounts.Add(part.Amounts, 1)
	}
	return out
}

// Reservations are by node. They are not changed once made.
type Reservations map[string][]Reservation

// Free is what a pod can use of a node's resources.
type Free struct {
	info framework.NodeInfo
	// reserved is what the reservations take that count.
	reserved Amounts
	// gone is what pods free that leave.
	gone Amounts
}

// FreeOf is what is left of a node. Reservations for pods that are on the node
// already, for pods of a lower priority, and for the asker do not count.
func FreeOf(info framework.NodeInfo, reservations []Reservation, a *Asker) Free {
	gone := a.Gone[info.Node().Name]
	f := Free{info: info, gone: gone.Amounts}
	if len(reservations) == 0 {
		return f
	}
	f.reserved = Amounts{}
	var advance []*Reservation
	here := make(map[types.UID]bool, len(info.GetPods()))
	for _, pod := range info.GetPods() {
		here[pod.GetPod().UID] = true
	}
	for i := range reservations {
		r := &reservations[i]
		switch {
		case here[r.UID] || r.Priority < a.Priority || r.UID == a.UID:
		case !r.Start.IsZero() && !a.Ahead:
			if !a.First && queue.Binds(r.Start, a.End) {
				advance = append(advance, r)
			}
		default:
			f.reserved.Add(r.Amounts, 1)
		}
	}
	if len(advance) > 0 {
		f.reserve(advance, gone.UIDs)
	}
	return f
}

// reserve charges what is reserved in advance, less what will be free by then. What
// pods free that count as gone is free already.
func (f *Free) reserve(advance []*Reservation, gone map[types.UID]bool) {
	reserved, leaving := Amounts{}, Amounts{}
	for _, r := range advance {
		reserved.Add(r.Amounts, 1)
	}
	now := time.Now()
	for _, info := range f.info.GetPods() {
		pod := info.GetPod()
		at, stated := end(pod, now)
		if !gone[pod.UID] && slices.ContainsFunc(advance, func(r *Reservation) bool {
			return r.Leaving[pod.UID] || stated && !queue.Binds(r.Start, at)
		}) {
			leaving.Add(Requests(pod), 1)
		}
	}
	for name, value := range reserved {
		f.reserved[name] += queue.Charge(value, leaving[name])
	}
}

// Count is how many pods of a class fit; it does not ask whether the node is
// eligible.
func (f *Free) Count(c *Class) int32 {
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

// selected is how many GPUs are left that the class's selector accepts. A node
// that does not publish its free GPUs has none.
func (f *Free) selected(c *Class) int64 {
	left, err := c.selector.Left(f.info)
	if err != nil {
		return 0
	}
	return left - f.Reserved(c.selector.Resource)
}

// Lacks is the first resource, by name, of which there is not enough for a pod;
// empty if there is.
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

// Reserved is how much of a resource is reserved for other pods.
func (f *Free) Reserved(name corev1.ResourceName) int64 { return f.reserved[name] }

// FitsTogether reports whether so many pods of each class fit at once.
func (f *Free) FitsTogether(classes []*Class, pods []int32) bool {
	total := Amounts{}
	for i, n := range pods {
		if n == 0 {
			continue // A gang may be of many classes, and a node has pods of few.
		}
		c := classes[i]
		if c.exclusive && n > 1 || c.selector != nil && int64(n)*c.Amounts[c.selector.Resource] > f.selected(c) {
			return false
		}
		total.Add(c.Amounts, int64(n))
	}
	return f.Lacks(total) == ""
}

// Left is how much of a resource is left, in the unit of [Amounts].
func (f *Free) Left(name corev1.ResourceName) int64 {
	allocatable, requested := f.info.GetAllocatable(), f.info.GetRequested()
	unused := int64(allocatable.GetAllowedPodNumber() - len(f.info.GetPods()))
	if name != corev1.ResourcePods {
		unused = amountIn(allocatable, name) - amountIn(requested, name)
	}
	return unused - f.reserved[name] + f.gone[name]
}

func amountIn(r framework.Resource, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.GetMilliCPU()
	case corev1.ResourceMemory:
		return r.GetMemory()
	case corev1.ResourceEphemeralStorage:
		return r.GetEphemeralStorage()
	default:
		return r.GetScalarResources()[name]
	}
}

// maxClasses is how many classes a table remembers.
const maxClasses = 128

// Table caches how many pods of a class fit on a node. It is for one goroutine:
// scheduling cycles are one after another.
type Table struct {
	// rows are by class, in the order of a query's nodes.
	rows map[Key][]count
}

// count holds while the node's generation does. No generation is used twice, by
// any node; but the cycle of a PodGroup puts members on a node without another
// generation, so the node's pods are counted too.
type count struct {
	generation  int64
	value, pods int32
}

// Query is about all nodes.
type Query struct {
	Nodes        []framework.NodeInfo
	Reservations Reservations
	Asker
}

// Count writes how many pods of a class fit on each node, in the order of Nodes,
// into the storage of into.
func (t *Table) Count(q *Query, c *Class, into []int32) []int32 {
	return t.measure(q, c.Key, c, into, func(f *Free) int32 { return f.Count(c) })
}

// Free writes how much of a resource each node has left, likewise.
func (t *Table) Free(q *Query, name corev1.ResourceName, into []int32) []int32 {
	return t.measure(q, sha256.Sum256([]byte(name)), nil, into, func(f *Free) int32 {
		return int32(max(0, min(f.Left(name), math.MaxInt32)))
	})
}

// measure takes what holds for every asker from the cache. A node with nothing
// free has nothing reserved either.
func (t *Table) measure(q *Query, key Key, c *Class, into []int32, value func(*Free) int32) []int32 {
	into = into[:0]
	counts := t.row(key, len(q.Nodes))
	for i, info := range q.Nodes {
		if _, gone := q.Gone[info.Node().Name]; gone {
			into = append(into, q.measure(info, c, value))
			continue
		}
		at, generation := &counts[i], info.GetGeneration()
		pods := int32(len(info.GetPods())) //nolint:gosec // A node has few.
		if at.generation != generation || at.pods != pods {
			*at = count{generation: generation, pods: pods}
			if c.Eligible(info.Node()) {
				at.value = value(&Free{info: info})
			}
		}
		n := at.value
		if n > 0 && len(q.Reservations) > 0 && len(q.Reservations[info.Node().Name]) > 0 {
			n = q.measure(info, c, value)
		}
		into = append(into, n)
	}
	return into
}

// measure is with reservations and pods that count as gone, which differ by asker.
func (q *Query) measure(info framework.NodeInfo, c *Class, value func(*Free) int32) int32 {
	if !c.Eligible(info.Node()) {
		return 0
	}
	free := FreeOf(info, q.Reservations[info.Node().Name], &q.Asker)
	return value(&free)
}

// row is that of a class. All make way when there are too many.
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
