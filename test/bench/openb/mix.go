package openb

import (
	"fmt"
	"math/rand"
)

// Mix is a cluster and the tasks that arrive there.
type Mix struct {
	Name  string
	Nodes []Node
	Tasks []Task
}

// machines are equal nodes; memory is in GiB.
func machines(nodes []Node, n, gpus int, cores, memory int64) []Node {
	for range n {
		made := Node{Name: fmt.Sprintf("n%04d", len(nodes)), CPU: cores * 1000, Memory: memory << 10}
		for range gpus {
			made.GPUs = append(made.GPUs, Whole)
		}
		made.HasCPU, made.HasMemory = made.CPU, made.Memory
		nodes = append(nodes, made)
	}
	return nodes
}

// Mixes are made up, so that nothing in a policy can be for them: what is scarce beside GPUs is the
// CPU of training with pods that load data, the memory of inference by shares, and in the last neither.
func Mixes() []Mix {
	dice := rand.New(rand.NewSource(1))
	one := func(of ...int) int { return of[dice.Intn(len(of))] }
	make1000 := func(task func() Task) (out []Task) {
		kinds := map[Task]int{}
		for range 1000 {
			t := task()
			if _, known := kinds[t]; !known {
				kinds[t] = len(kinds)
			}
			t.Kind = kinds[t]
			out = append(out, t)
		}
		return out
	}
	whole := func(gpus int, cores, memory int64) Task {
		return Task{CPU: int64(gpus) * cores * 1000, Memory: int64(gpus) * memory << 10, GPUs: gpus, Share: Whole}
	}
	return []Mix{
		{"training", machines(machines(nil, 150, 8, 96, 1024), 100, 4, 48, 512), make1000(func() Task {
			if dice.Intn(3) == 0 {
				return Task{CPU: int64(one(2, 4, 8)) * 1000, Memory: int64(one(4, 16)) << 10}
			}
			return whole(one(1, 1, 2, 4, 8), int64(one(6, 10, 12)), 48)
		})},
		{"inference", machines(machines(nil, 150, 2, 64, 128), 100, 8, 128, 512), make1000(func() Task {
			if dice.Intn(4) == 0 {
				return whole(one(1, 2), 6, int64(one(32, 60)))
			}
			return Task{
				CPU: int64(one(1, 2, 4)) * 1000, Memory: int64(one(8, 16, 32)) << 10, GPUs: 1, Share: 100 * one(1, 2, 3, 5, 7),
			}
		})},
		{"ample", machines(nil, 200, 8, 192, 2048), make1000(func() Task {
			if dice.Intn(2) == 0 {
				return Task{CPU: 2000, Memory: 4 << 10, GPUs: 1, Share: 100 * one(2, 3, 5)}
			}
			return whole(one(1, 2, 4, 8), 8, 64)
		})},
	}
}
