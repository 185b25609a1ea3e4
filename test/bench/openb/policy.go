package openb

import (
	"cmp"
	"math"
	"math/rand"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/packing"
)

type merit [4]float64

// Policy orders nodes for a task; the least merit wins, of equal ones the first node.
type Policy struct {
	Name string
	// Merit is of a node that takes the task.
	Merit func(n *Node, t *Task) merit
	// Stable reports that it depends on the node and the task alone.
	Stable bool
	// GPUs chooses the GPUs on the node; nil for the fullest that have room.
	GPUs func(n *Node, t *Task) []int
	// Learn is told of each task that has its node.
	Learn func(t *Task)
}

// roomy are the GPUs that have room for a task, the fullest first.
func roomy(n *Node, t *Task) (gpus []int) {
	for i, g := range n.GPUs {
		if g >= t.Share {
			gpus = append(gpus, i)
		}
	}
	slices.SortStableFunc(gpus, func(a, b int) int { return cmp.Compare(n.GPUs[a], n.GPUs[b]) })
	return gpus
}

func fullest(n *Node, t *Task) []int { return roomy(n, t)[:t.GPUs] }

// Policies makes the policies for a cluster, tasks and a seed.
func Policies(nodes []Node, tasks []Task, seed int64) []Policy {
	return []Policy{Random(seed), LeastAllocated(), MostAllocated(), BestFit(), FGD(tasks), Heddle(nodes)}
}

// Random takes any node and any GPU.
func Random(seed int64) Policy {
	dice := rand.New(rand.NewSource(seed))
	return Policy{
		Name:  "Random",
		Merit: func(*Node, *Task) merit { return merit{dice.Float64()} },
		GPUs: func(n *Node, t *Task) []int {
			gpus := roomy(n, t)
			dice.Shuffle(len(gpus), func(i, j int) { gpus[i], gpus[j] = gpus[j], gpus[i] })
			return gpus[:t.GPUs]
		},
	}
}

// used is how much of the CPU, the memory and the GPUs of a node is in use with the task, 0 to 3.
func used(n *Node, t *Task) float64 {
	gpus := float64(Whole * len(n.GPUs))
	return 3 - float64(n.CPU-t.CPU)/float64(n.HasCPU) - float64(n.Memory-t.Memory)/float64(n.HasMemory) -
		float64(n.idle()-t.total())/gpus
}

// LeastAllocated and MostAllocated score as kube-scheduler's NodeResourcesFit.
func LeastAllocated() Policy {
	return Policy{Name: "LeastAllocated", Stable: true, Merit: func(n *Node, t *Task) merit {
		return merit{math.Floor(100 * used(n, t) / 3)}
	}}
}

// MostAllocated is the other one; see [LeastAllocated].
func MostAllocated() Policy {
	return Policy{Name: "MostAllocated", Stable: true, Merit: func(n *Node, t *Task) merit {
		return merit{-math.Floor(100 * used(n, t) / 3)}
	}}
}

// BestFit leaves the least CPU and GPUs, in parts of the largest node; scores are whole percents, as
// in the paper's simulator.
func BestFit() Policy {
	return Policy{Name: "BestFit", Stable: true, Merit: func(n *Node, t *Task) merit {
		left := float64(n.CPU-t.CPU)/128_000 + float64(n.idle()-t.total())/(8*Whole)
		return merit{-math.Floor(100 * (1 - left/2))}
	}}
}

// Heddle is heddle-scheduler's order: that of its plugin, by its own code.
func Heddle(nodes []Node) Policy {
	var d packing.Demand
	capacity, selected := int64(0), map[string]bool{"": true}
	for i := range nodes {
		capacity += int64(packing.Whole * len(nodes[i].GPUs))
	}
	amounts := func(t *Task) map[corev1.ResourceName]int64 {
		return map[corev1.ResourceName]int64{corev1.ResourceCPU: t.CPU, corev1.ResourceMemory: t.Memory}
	}
	percent := func(thousandths int) int64 { return int64(thousandths * packing.Whole / Whole) }
	// The names are sorted: CPU, then memory.
	room := func(n *Node) packing.Room {
		parts := 0
		for _, g := range n.GPUs {
			if g < Whole {
				parts += g
			}
		}
		return packing.Room{GPUs: percent(n.idle()), Parts: percent(parts), Left: []int64{n.CPU, n.Memory}}
	}
	return Policy{
		Name: "heddle",
		Merit: func(n *Node, t *Task) merit {
			before, left := room(n), float64(n.CPU)/float64(n.HasCPU)+float64(n.Memory)/float64(n.HasMemory)
			gpus := fullest(n, t)
			n.take(t, gpus, 1)
			after := room(n)
			n.take(t, gpus, -1)
			n.version -= 2
			rest := 0
			for _, i := range gpus {
				rest += n.GPUs[i] - t.Share
			}
			return merit{d.Cost(n.Name, before, after), float64(rest), float64(before.GPUs), left}
		},
		Learn: func(t *Task) {
			if !selected[t.Models] {
				selected[t.Models] = true
				var only []string
				on := int64(0)
				for i := range nodes {
					if strings.Contains("|"+t.Models+"|", "|"+nodes[i].Model+"|") {
						only, on = append(only, nodes[i].Name), on+int64(packing.Whole*len(nodes[i].GPUs))
					}
				}
				d.Select(t.Models, only, on)
			}
			d.Add(percent(t.total()), amounts(t), capacity, t.Models)
		},
	}
}
