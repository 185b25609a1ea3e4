package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

func xeon(model int, name, codename string, nodes ...machine.NUMANode) machine.CPU {
	return machine.CPU{
		Arch: "amd64", Vendor: "intel", Family: 6, Model: model, ModelName: name, Codename: "intel-xeon-" + codename,
		Sockets: len(nodes), NUMA: nodes,
	}
}

// nodes are NUMA nodes by their lists of processors, all equally far from each
// other.
func nodes(far int, cpus ...string) []machine.NUMANode {
	all := make([]machine.NUMANode, len(cpus))
	for i := range all {
		distances := make([]int, len(cpus))
		for j := range distances {
			distances[j] = far
		}
		distances[i] = 10
		all[i] = machine.NUMANode{ID: i, CPUs: cpus[i], Distances: distances}
	}
	return all
}

// epyc is a machine of AMD's server processors: Rome is family 23 model 49,
// Milan 25 and 1, Genoa 25 and 17.
func epyc(family, model, sockets int, name, codename string, nodes ...machine.NUMANode) machine.CPU {
	return machine.CPU{
		Arch: "amd64", Vendor: "amd", Family: family, Model: model, ModelName: "AMD EPYC " + name,
		Codename: "amd-epyc-" + codename, Sockets: sockets, NUMA: nodes,
	}
}

// grace is two Grace processors and the four GPUs' memories, which are NUMA
// nodes without processors. Implementer 0x41 is Arm, part 0xd4f Neoverse V2.
func grace() machine.CPU {
	c := machine.CPU{Arch: "arm64", Vendor: "nvidia", Family: 0x41, Model: 0xd4f, Codename: "nvidia-grace", Sockets: 2}
	ids := []int{0, 1, 2, 10, 18, 26}
	socket := []int{0, 1, 0, 0, 1, 1}
	for i, id := range ids {
		n := machine.NUMANode{ID: id, Distances: make([]int, len(ids))}
		if i < 2 {
			n.CPUs = fmt.Sprintf("%d-%d", 72*i, 72*i+71)
		}
		for j := range ids {
			switch {
			case i == j:
				n.Distances[j] = 10
			case i < 2 && j < 2:
				n.Distances[j] = 40
			case socket[i] == socket[j]:
				n.Distances[j] = 80
			default:
				n.Distances[j] = 120
			}
		}
		c.NUMA = append(c.NUMA, n)
	}
	return c
}
