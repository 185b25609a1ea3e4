package affinity

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
)

// port is a node of a PCIe tree that is built beside the machine: the
// definitions below go by its links and not by text.
type port struct {
	parent *port
	// children of one switch chip share chip; nil for host bridges and root
	// ports.
	chip *int
}

// world is a random machine and what is true about it.
type world struct {
	machine machine.Machine
	// at is where each function hangs; bridge and numa are those of its host
	// bridge.
	at     []*port
	bridge []int
	numa   []int
}

// grow makes host bridges on two NUMA nodes, root ports, switches up to three
// deep and functions anywhere.
func grow(r *rand.Rand) *world {
	w := &world{machine: *numaMachine("0-7", "8-15")}
	address := 0
	next := func() string {
		address++
		return machine.Address{Bus: uint64(address) / 32, Device: uint64(address) % 32}.String()
	}
	add := func(at *port, root string, bridge, numa int, upstream []string) {
		w.machine.PCI = append(w.machine.PCI, function(next(), root, new(numa), append([]string{}, upstream...)...))
		w.at, w.bridge, w.numa = append(w.at, at), append(w.bridge, bridge), append(w.numa, numa)
	}
	for bridge := range 4 {
		root, numa := fmt.Sprintf("pci%04x:00", bridge), bridge/2
		var hang func(under *port, upstream []string, depth int)
		hang = func(under *port, upstream []string, depth int) {
			if depth == 0 || r.IntN(3) == 0 {
				add(under, root, bridge, numa, upstream)
				return
			}
			chip := new(int)
			up := next()
			for range 1 + r.IntN(3) {
				down := &port{parent: under, chip: chip}
				hang(down, append(append([]string{}, upstream...), up, next()), depth-1)
			}
		}
		for range 1 + r.IntN(3) {
			hang(&port{}, []string{next()}, 3)
		}
		if r.IntN(2) == 0 {
			add(&port{}, root, bridge, numa, nil)
		}
	}
	return w
}

// class is the definition: through how many switch chips, under which bridges.
func (w *world) class(i, j int) Kind {
	switch {
	case i == j:
		return Self
	case w.numa[i] != w.numa[j]:
		return SYS
	case w.bridge[i] != w.bridge[j]:
		return NODE
	}
	for up, a := 0, w.at[i]; a != nil; up, a = up+1, a.parent {
		for down, b := 0, w.at[j]; b != nil; down, b = down+1, b.parent {
			switch {
			case a == b, a.chip != nil && a.chip == b.chip && up == 0 && down == 0:
				if up == 0 && down == 0 {
					return PIX
				}
				return PXB
			case a.chip != nil && a.chip == b.chip:
				return PXB
			}
		}
	}
	return PHB
}

// TestRandomTrees compares the classes of random machines with the definition.
func TestRandomTrees(t *testing.T) {
	seen := map[Kind]int{}
	for seed := range uint64(300) {
		w := grow(rand.New(rand.NewPCG(seed, 7)))
		for i := range w.machine.PCI {
			f := &w.machine.PCI[i]
			if i%2 == 0 {
				w.machine.GPUs = append(w.machine.GPUs, machine.GPU{UUID: f.Address, PCI: f.Address})
			} else {
				w.machine.HCAs = append(w.machine.HCAs, machine.HCA{Name: f.Address, PCI: f.Address, Role: machine.RoleFabric})
			}
		}
		place := map[string]int{}
		for i := range w.machine.PCI {
			place[w.machine.PCI[i].Address] = i
		}
		x := Of(&w.machine)
		for i, a := range x.Devices {
			for j, b := range x.Devices {
				want := w.class(place[a.PCI], place[b.PCI])
				seen[want]++
				if got := x.At(i, j); got.Kind != want {
					t.Fatalf("seed %d: %s to %s is %s, want %s\n%v\n%v", seed, a.PCI, b.PCI, got, Class{Kind: want},
						w.machine.Function(a.PCI), w.machine.Function(b.PCI))
				}
			}
			checkNearest(t, x, i)
		}
	}
	for _, kind := range []Kind{SYS, NODE, PHB, PXB, PIX} {
		if seen[kind] < 100 {
			t.Errorf("%s came up %d times only", Class{Kind: kind}, seen[kind])
		}
	}
}

// checkNearest compares Nearest with a search over all pairs.
func checkNearest(t *testing.T, x *Matrix, i int) {
	t.Helper()
	near, class := x.Nearest(i, IsFabricHCA)
	in := map[int]bool{}
	for _, j := range near {
		in[j] = true
	}
	for j, d := range x.Devices {
		if j == i || !IsFabricHCA(d) {
			if in[j] {
				t.Fatalf("%s was not asked for", d.Name)
			}
			continue
		}
		if order := x.At(i, j).Compare(class); order > 0 || (order == 0) != in[j] {
			t.Fatalf("%s is %s away, the nearest are %s, and it is one of them: %t", d.Name, x.At(i, j), class, in[j])
		}
	}
}
