package fit

import (
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
	into = into[:0]
	if q.Preempt {
		for _, info := range q.Nodes {
			into = append(into, q.fresh(info))
		}
		return into
	}
	r := t.row(q.Class.Key, len(q.Nodes))
	for i, info := range q.Nodes {
		at, generation, pods := &r.cells[i], info.GetGeneration(), int32(len(info.GetPods())) //nolint:gosec // A node has few.
		if at.generation != generation || at.pods != pods {
			*at = cell{generation, count(q.Class, info), pods}
		}
		n := at.count
		if n > 0 && len(q.Promises) > 0 && len(q.Promises[info.Node().Name]) > 0 {
			n = q.fresh(info)
		}
		into = append(into, n)
	}
	return into
}

// count is without promises.
func count(c *Class, info framework.NodeInfo) int32 {
	if info.Node() == nil || !c.Eligible(info.Node()) {
		return 0
	}
	room := Room{info: info}
	return room.Count(c)
}

// fresh is with everything.
func (q *Question) fresh(info framework.NodeInfo) int32 {
	if info.Node() == nil || !q.Class.Eligible(info.Node()) {
		return 0
	}
	room := RoomOf(info, q.Promises[info.Node().Name], q.Priority, q.Mine)
	if q.Preempt {
		room.Spare(q.Priority)
	}
	return room.Count(q.Class)
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
