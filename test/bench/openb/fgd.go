package openb

import (
	"cmp"
	"math"
	"slices"
)

// FGD is Fragmentation Gradient Descent of the paper: it takes the node, and the GPU, on which the expected amount
// of GPUs that the tasks of the trace cannot use grows least. Scores are whole percents, as in its simulator.
func FGD(tasks []Task) Policy {
	typical := typicalOf(tasks)
	score := func(n *Node, t *Task, gpus []int) float64 {
		before := fragments(n, typical)
		n.take(t, gpus, 1)
		growth := fragments(n, typical) - before
		n.take(t, gpus, -1)
		n.version -= 2
		return -math.Floor(100 / (1 + math.Exp(growth/Whole)))
	}
	best := func(n *Node, t *Task) (gpus []int, least float64) {
		able := roomy(n, t)
		slices.Sort(able)
		if t.GPUs != 1 {
			return able[:t.GPUs], score(n, t, able[:t.GPUs])
		}
		for _, i := range able {
			if s := score(n, t, []int{i}); gpus == nil || s < least {
				gpus, least = []int{i}, s
			}
		}
		return gpus, least
	}
	return Policy{
		Name: "FGD", Stable: true,
		Merit: func(n *Node, t *Task) merit {
			_, least := best(n, t)
			return merit{least}
		},
		GPUs: func(n *Node, t *Task) []int {
			gpus, _ := best(n, t)
			return gpus
		},
	}
}

// typicalTask is a kind of tasks, and how often it comes.
type typicalTask struct {
	Task
	part float64
}

// typicalOf are the kinds that are 95 % of the tasks, the most frequent first.
func typicalOf(tasks []Task) (out []typicalTask) {
	byKind := map[int]int{}
	for _, t := range tasks {
		at, known := byKind[t.Kind]
		if !known {
			at, byKind[t.Kind] = len(out), len(out)
			out = append(out, typicalTask{Task: t})
		}
		out[at].part++
	}
	slices.SortStableFunc(out, func(a, b typicalTask) int { return cmp.Compare(b.part, a.part) })
	sum, n := 0.0, 0
	for n < len(out) && sum < 0.95*float64(len(tasks)) {
		sum += out[n].part
		n++
	}
	for i := range out[:n] {
		out[i].part /= sum
	}
	return out[:n]
}

// fragments is how much of a node's GPUs tasks are expected not to use: all of it for a task that
// the node does not take or that needs none, else the GPUs that have too little for it.
func fragments(n *Node, typical []typicalTask) (sum float64) {
	idle := n.idle()
	if idle == 0 {
		return 0
	}
	memory := n.Memory
	n.Memory = math.MaxInt64 // The paper does not count it.
	defer func() { n.Memory = memory }()
	for i := range typical {
		t, useless := &typical[i], idle
		if t.GPUs > 0 && n.fits(&t.Task) {
			useless = 0
			for _, g := range n.GPUs {
				if g < t.Share {
					useless += g
				}
			}
		}
		sum += t.part * float64(useless)
	}
	return sum
}
