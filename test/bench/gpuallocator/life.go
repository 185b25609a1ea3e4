package main

import (
	"math/bits"
	"math/rand/v2"
)

// life is what pods got that came and went on both sides in the same order.
type life struct {
	pods         int
	ours, theirs side
}

// side is one node under one allocator.
type side struct {
	free uint64
	held []uint64
	// sum is the pairs' MB/s of all pods of several GPUs, pairs their number.
	sum, pairs int
	// best counts the pods that got as much as they would of an empty machine.
	best, several int
}

func (s *side) mean() float64      { return float64(s.sum) / float64(max(s.pairs, 1)) }
func (s *side) bestShare() float64 { return 100 * float64(s.best) / float64(max(s.several, 1)) }

// live sends n random events to both: a pod of 1, 2, 4 or 3 GPUs comes if it
// fits, or one goes. What fits on one side fits on the other, since both hold
// the same sizes.
func (p *pair) live(n int) (*life, error) {
	r := rand.New(rand.NewPCG(1, 2))
	all := uint64(1)<<p.n - 1
	l := &life{ours: side{free: all}, theirs: side{free: all}}
	for range n {
		size := []int{1, 1, 1, 2, 2, 2, 4, 4, 3}[r.IntN(9)]
		if len(l.ours.held) > 0 && r.IntN(2) == 0 {
			gone := r.IntN(len(l.ours.held))
			l.ours.leave(gone)
			l.theirs.leave(gone)
			continue
		}
		if bits.OnesCount64(l.ours.free) < size {
			continue
		}
		a, err := p.ours.Choose(l.ours.free, 0, size)
		if err != nil {
			return nil, err
		}
		b := maskOf(p.theirs.policy.Allocate(p.theirs.list(l.theirs.free), nil, size))
		if bits.OnesCount64(b) != size { // No answer: the kubelet would take any.
			b = 0
			for left := l.theirs.free; bits.OnesCount64(b) < size; left &= left - 1 {
				b |= left & -left
			}
		}
		best := p.bestOf(size)
		l.pods++
		l.ours.take(p, a, best)
		l.theirs.take(p, b, best)
	}
	return l, nil
}

// bestOf is the greatest sum of pairs that size GPUs can have.
func (p *pair) bestOf(size int) int {
	best := 0
	for set := uint64(1); set < 1<<p.n; set++ {
		if bits.OnesCount64(set) == size {
			best = max(best, p.ours.Score(set))
		}
	}
	return best
}

func (s *side) take(p *pair, set uint64, best int) {
	s.free &^= set
	s.held = append(s.held, set)
	if k := bits.OnesCount64(set); k > 1 {
		s.several++
		s.sum += p.ours.Score(set) * (k - 1) / 2
		s.pairs += k * (k - 1) / 2
		if p.ours.Score(set) == best {
			s.best++
		}
	}
}

func (s *side) leave(i int) {
	s.free |= s.held[i]
	s.held = append(s.held[:i], s.held[i+1:]...)
}
