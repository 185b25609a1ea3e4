package fit

import (
	"crypto/sha256"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// maxClasses is how many classes a table remembers.
const maxClasses = 128

// Table remembers how many pods of a class fit on a node. It is for one
// goroutine: scheduling cycles are one after another.
type Table struct {
	rows map[Key]*row
	tick int64
}

type row struct {
	cells []cell
	used  int64
}

// cell is a count that holds while the node's generation does. Generations are
// never used twice, by any node; but the cycle of a PodGroup puts members on a
// node without another generation, so its pods are counted too.
type cell struct {
	generation  int64
	count, pods int32
}

// Question is what somebody wants to know of all nodes.
type Question struct {
	Class *Class
	Nodes []framework.NodeInfo
	// Promises to others count; Mine tells which are the asker's own.
	Promises Promises
	Mine     func(types.UID) bool
	Priority int32
	// Preempt counts as if pods of lower priority were gone.
	Preempt bool
}

// Count writes how many pods fit on each node, in the order of Nodes, into the
// storage of into.
func (t *Table) Count(q *Question, into []int32) []int32 {
	return t.measure(q, q.Class.Key, into, func(r *Room) int32 { return r.Count(q.Class) })
}

// Free writes how much of a resource each node has left, likewise. The question
// has no class.
func (t *Table) Free(q *Question, name corev1.ResourceName, into []int32) []int32 {
	return t.measure(q, sha256.Sum256([]byte(name)), into, func(r *Room) int32 {
		return int32(max(0, min(r.free(name), math.MaxInt32)))
	})
}

// measure asks about every node, or remembers. A node with nothing to give has
// promised nothing either.
func (t *Table) measure(q *Question, key Key, into []int32, gauge func(*Room) int32) []int32 {
	into = into[:0]
	r := t.row(key, len(q.Nodes))
	for i, info := range q.Nodes {
		if q.Preempt {
			into = append(into, q.fresh(info, gauge))
			continue
		}
		at, generation := &r.cells[i], info.GetGeneration()
		pods := int32(len(info.GetPods())) //nolint:gosec // A node has few.
		if at.generation != generation || at.pods != pods {
			*at = cell{generation: generation, pods: pods}
			if q.eligible(info.Node()) {
				at.count = gauge(&Room{info: info})
			}
		}
		n := at.count
		if n > 0 && len(q.Promises) > 0 && len(q.Promises[info.Node().Name]) > 0 {
			n = q.fresh(info, gauge)
		}
		into = append(into, n)
	}
	return into
}

// fresh is with promises, and preemption.
func (q *Question) fresh(info framework.NodeInfo, gauge func(*Room) int32) int32 {
	if !q.eligible(info.Node()) {
		return 0
	}
	room := RoomOf(info, q.Promises[info.Node().Name], q.Priority, q.Mine)
	if q.Preempt {
		room.Spare(q.Priority)
	}
	return gauge(&room)
}

func (q *Question) eligible(node *corev1.Node) bool {
	return node != nil && (q.Class == nil || q.Class.Eligible(node))
}

// row is that of a class, with so many cells. The one that was asked for least
// lately makes room.
func (t *Table) row(key Key, nodes int) *row {
	if t.rows == nil {
		t.rows = make(map[Key]*row)
	}
	t.tick++
	r := t.rows[key]
	if r == nil {
		if len(t.rows) >= maxClasses {
			var oldest Key
			for k, other := range t.rows {
				if old := t.rows[oldest]; old == nil || other.used < old.used {
					oldest = k
				}
			}
			delete(t.rows, oldest)
		}
		r = &row{}
		t.rows[key] = r
	}
	r.used = t.tick
	if len(r.cells) > nodes {
		r.cells = r.cells[:nodes]
	}
	for len(r.cells) < nodes {
		r.cells = append(r.cells, cell{generation: -1})
	}
	return r
}
