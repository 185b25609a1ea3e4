package fit

import (
	"crypto/sha256"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
)

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
		return int32(max(0, min(f.amount(name), math.MaxInt32)))
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
