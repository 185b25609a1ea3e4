package preferred_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/preferred"
)

// randomMachine has up to most GPUs with links of any shape: none, pairs, a
// mesh with holes, NVSwitches with some GPUs off them, several speeds.
func randomMachine(r *rand.Rand, most int) *machine.Machine {
	m := &machine.Machine{}
	numa := 1 + r.IntN(4)
	for id := range numa {
		node := machine.NUMANode{ID: id, CPUs: fmt.Sprint(id)}
		for other := range numa {
			node.Distances = append(node.Distances, []int{10, 12, 32}[min((id^other), 2)])
		}
		m.CPU.NUMA = append(m.CPU.NUMA, node)
	}
	n := 1 + r.IntN(most)
	for i := range n {
		f := machine.PCIFunction{Address: fmt.Sprintf("0000:%02x:00.0", i+1)}
		f.Root = fmt.Sprintf("pci0000:%02x", r.IntN(4)*16)
		if r.IntN(10) > 0 {
			f.NUMA = new(r.IntN(numa))
		}
		for level := range r.IntN(4) {
			f.Upstream = append(f.Upstream, fmt.Sprintf("%s-%d-%d", f.Root, level, r.IntN(2)))
		}
		if r.IntN(20) > 0 {
			m.PCI = append(m.PCI, f)
		}
		m.GPUs = append(m.GPUs, machine.GPU{UUID: fmt.Sprintf("GPU-%d", i), PCI: f.Address})
	}
	link := func(i int, peer string, links int, mbps *int64) {
		m.GPUs[i].NVLinks = append(m.GPUs[i].NVLinks, machine.NVLink{Peer: peer, Links: links, MBps: mbps})
	}
	shape := r.IntN(4)
	for i := range n {
		if shape == 1 && r.IntN(6) > 0 {
			link(i, machine.PeerNVSwitch, 18, new(int64(478_125)))
		}
		for j := range i {
			links := 1 + r.IntN(4)
			var mbps *int64
			if r.IntN(2) == 0 {
				mbps = new(int64(links) * 26_562)
			}
			if shape == 2 && i^j == 1 || shape == 3 && r.IntN(2) == 0 {
				link(i, m.GPUs[j].PCI, links, mbps)
				link(j, m.GPUs[i].PCI, links, mbps)
			}
		}
	}
	return m
}

// bruteForce is the definition in the package comment, word by word.
type bruteForce struct {
	s     *preferred.Scores
	n     int
	value map[uint64]int
}

func (b *bruteForce) score(set uint64) int {
	sum, k := 0, bits.OnesCount64(set)
	if k < 2 {
		return 0
	}
	for i := range b.n {
		for j := range i {
			if set>>i&1 == 1 && set>>j&1 == 1 {
				sum += b.s.Pair(i, j)
			}
		}
	}
	return 2 * sum / (k - 1)
}

func (b *bruteForce) valueOf(rest uint64) int {
	if v, ok := b.value[rest]; ok {
		return v
	}
	best := make([]int, b.n+1)
	for t := rest; t != 0; t = (t - 1) & rest {
		k := bits.OnesCount64(t)
		best[k] = max(best[k], b.score(t))
	}
	sum := 0
	for _, v := range best {
		sum += v
	}
	b.value[rest] = sum / b.n
	return b.value[rest]
}

func (b *bruteForce) choose(available, must uint64, size int) (uint64, int) {
	chosen, best := uint64(0), 0
	for set := available; set != 0; set = (set - 1) & available {
		if bits.OnesCount64(set) != size || set&must != must {
			continue
		}
		sum := b.score(set) - (b.valueOf(available) - b.valueOf(available&^set))
		if chosen == 0 || sum > best || sum == best && first(set, chosen) {
			chosen, best = set, sum
		}
	}
	return chosen, best
}

// first reports whether the sorted indices of a come before those of b.
func first(a, b uint64) bool {
	diff := a ^ b
	return diff != 0 && a&(diff&-diff) != 0
}

func TestChoiceIsTheOptimumOfRandomMachines(t *testing.T) {
	machines := 10_000
	if testing.Short() {
		machines = 500
	}
	r := rand.New(rand.NewPCG(3, 14))
	for range machines {
		m := randomMachine(r, 10)
		n := len(m.GPUs)
		s := preferred.New(nil, m)
		brute := &bruteForce{s: s, n: n, value: map[uint64]int{}}
		available := r.Uint64() & (1<<n - 1)
		if r.IntN(2) == 0 {
			available = 1<<n - 1
		}
		if available == 0 {
			continue
		}
		size := 1 + r.IntN(bits.OnesCount64(available))
		var must uint64
		if r.IntN(3) == 0 {
			for must = available & r.Uint64() & r.Uint64(); bits.OnesCount64(must) > size; {
				must &= must - 1
			}
		}
		got := s.Choose(available, must, size)
		want, sum := brute.choose(available, must, size)
		if got != want || s.Score(got)-s.Loss(got, available) != sum {
			t.Fatalf("%d of %#x with %#x on %+v: got %#x worth %d, want %#x worth %d", size, available, must, m.GPUs,
				got, s.Score(got)-s.Loss(got, available), want, sum)
		}
	}
}
