package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

type shape struct {
	name    string
	machine *machine.Machine
}

// shapes are the ways in which GPUs hang together.
func shapes() []shape {
	cube := plain(8, 4)
	for _, l := range [][3]int{
		{0, 1, 1},
		{0, 2, 1},
		{0, 3, 2},
		{0, 4, 2},
		{1, 2, 2},
		{1, 3, 1},
		{1, 5, 2},
		{2, 3, 2},
		{2, 6, 1},
		{3, 7, 1},
		{4, 5, 1},
		{4, 6, 1},
		{4, 7, 2},
		{5, 6, 2},
		{5, 7, 1},
		{6, 7, 2},
	} {
		connect(cube, l[0], l[1], l[2])
	}
	off := plain(8, 4)
	mesh(off, 2, []int{0, 1, 3, 4, 5, 6, 7})
	boards := plain(16, 8)
	for board := range 4 {
		mesh(boards, 4, []int{4 * board, 4*board + 1, 4*board + 2, 4*board + 3})
	}
	return []shape{
		{"DGX-1 hypercube, 8", cube},
		{"NVLink pairs, 8", pairs(plain(8, 4))},
		{"full mesh but one, 8", off},
		{"PCIe switches, 8", plain(8, 4)},
		{"NVLink pairs, 16", pairs(plain(16, 8))},
		{"boards of four, 16", boards},
	}
}

// plain has n GPUs without NVLinks: two under each switch, perNode on each NUMA
// node.
func plain(n, perNode int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		node, bridge := i/perNode, i/2
		if i%perNode == 0 {
			m.CPU.NUMA = append(m.CPU.NUMA, machine.NUMANode{ID: node, CPUs: fmt.Sprint(node)})
		}
		address := fmt.Sprintf("0000:%02x:00.0", i+1)
		m.PCI = append(m.PCI, machine.PCIFunction{
			Address: address, Root: fmt.Sprintf("pci0000:%02x", bridge), NUMA: &node,
			Upstream: []string{fmt.Sprintf("port%d", bridge), fmt.Sprintf("up%d", bridge), fmt.Sprintf("down%d", i)},
		})
		m.GPUs = append(m.GPUs, machine.GPU{UUID: fmt.Sprintf("GPU-%02d", i), PCI: address})
	}
	return m
}

func connect(m *machine.Machine, i, j, links int) {
	for _, end := range [][2]int{{i, j}, {j, i}} {
		g := &m.GPUs[end[0]]
		g.NVLinks = append(g.NVLinks, machine.NVLink{Peer: m.GPUs[end[1]].PCI, Links: links})
	}
}

func mesh(m *machine.Machine, links int, gpus []int) {
	for a, i := range gpus {
		for _, j := range gpus[:a] {
			connect(m, i, j, links)
		}
	}
}

func pairs(m *machine.Machine) *machine.Machine {
	for i := 0; i < len(m.GPUs); i += 2 {
		connect(m, i, i+1, 4)
	}
	return m
}
