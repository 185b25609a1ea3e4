package openb

import (
	"cmp"
	"math/rand"
	"slices"
	"time"
)

// Result is how many percent of the GPUs are allocated once 100 and 130 % of them are asked for.
type Result struct {
	At100, At130 float64
	// Decision is the mean time of one.
	Decision time.Duration
}

// known is a merit that depends on the node and the task alone.
type known struct {
	version int
	fits    bool
	merit   merit
}

// run is a cluster with the tasks that a policy has placed.
type run struct {
	Policy
	nodes []Node
	// memo is indexed by node and kind of task.
	memo  []known
	kinds int
	// total and allocated are in thousandths of a GPU.
	total, allocated int
	// took is the time of tried decisions.
	took  time.Duration
	tried int
}

func newRun(cluster []Node, tasks []Task, p Policy) *run {
	r := &run{Policy: p, nodes: slices.Clone(cluster)}
	for i := range r.nodes {
		n := &r.nodes[i]
		n.GPUs, n.version = slices.Clone(n.GPUs), 1
		r.total += Whole * len(n.GPUs)
	}
	for i := range tasks {
		r.kinds = max(r.kinds, tasks[i].Kind+1)
	}
	r.memo = make([]known, len(r.nodes)*r.kinds)
	return r
}

// place gives a task a node; nil if none takes it.
func (r *run) place(t *Task) (node *Node, gpus []int) {
	begin := time.Now()
	var least merit
	for at := range r.nodes {
		n, k := &r.nodes[at], &r.memo[at*r.kinds+t.Kind]
		if k.version != n.version {
			*k = known{version: n.version, fits: n.fits(t)}
			if k.fits && r.Stable {
				k.merit = r.Merit(n, t)
			}
		}
		if !k.fits {
			continue
		}
		found := k.merit
		if !r.Stable {
			found = r.Merit(n, t)
		}
		if node == nil || slices.Compare(found[:], least[:]) < 0 {
			node, least = n, found
		}
	}
	r.took += time.Since(begin)
	if r.tried++; node == nil {
		return nil, nil
	}
	if r.GPUs != nil {
		gpus = r.GPUs(node, t)
	} else {
		gpus = fullest(node, t)
	}
	node.take(t, gpus, 1)
	r.allocated += t.total()
	if r.Learn != nil {
		r.Learn(t)
	}
	return node, gpus
}

func (r *run) percent() float64 { return 100 * float64(r.allocated) / float64(r.total) }

// Replay places tasks by a policy, one after the other.
func Replay(cluster []Node, arrivals []Task, p Policy) Result {
	r := newRun(cluster, arrivals, p)
	var out Result
	asked := 0
	for i := range arrivals {
		asked += arrivals[i].total()
		r.place(&arrivals[i])
		if asked <= r.total {
			out.At100 = r.percent()
		} else if asked <= r.total*13/10 {
			out.At130 = r.percent()
		}
	}
	out.Decision = r.took / time.Duration(max(1, r.tried))
	return out
}

// departure is when a task ends that has its room on a node.
type departure struct {
	at   float64
	node *Node
	gpus []int
	task *Task
}

// Churn places random tasks that end again, so that as many GPUs as there are, and a load on top, are asked for at any
// time. What does not fit is dropped. It returns the mean percent of the GPUs that are allocated, after a time
// in which the cluster fills up.
func Churn(cluster []Node, tasks []Task, load float64, seed int64, p Policy) float64 {
	r, dice := newRun(cluster, tasks, p), rand.New(rand.NewSource(seed))
	asked := 0
	for i := range tasks {
		asked += tasks[i].total()
	}
	// One task arrives in each unit of time.
	life := load * float64(r.total) * float64(len(tasks)) / float64(asked)
	var ends []departure
	sum, n := 0.0, 0
	for now := 0.0; now < 4*life; now++ {
		for len(ends) > 0 && ends[0].at <= now {
			d := ends[0]
			ends = ends[1:]
			d.node.take(d.task, d.gpus, -1)
			r.allocated -= d.task.total()
		}
		t, lasts := &tasks[dice.Intn(len(tasks))], dice.ExpFloat64()*life
		if node, gpus := r.place(t); node != nil {
			at, _ := slices.BinarySearchFunc(ends, now+lasts, func(d departure, at float64) int { return cmp.Compare(d.at, at) })
			ends = slices.Insert(ends, at, departure{now + lasts, node, gpus, t})
		}
		if now >= 2*life {
			sum, n = sum+r.percent(), n+1
		}
	}
	return sum / float64(n)
}
