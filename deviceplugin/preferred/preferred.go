// Package preferred decides which GPUs of a node go together in a preferred
// allocation: the best n of those
// that are free, and what taking them costs the others.
//
// It is pure: it decides from a [machine.Machine] and bit masks of its GPUs,
// reads no hardware and knows neither pods nor the kubelet. It never rejects a
// choice because of topology; where nothing is known about the links, all sets
// are equal and the first one wins.
//
// All figures are bandwidths in MB/s, 10^6 bytes a second in one direction, as
// [machine.NVLink] has them:
//
//   - pair(i, j) is the connection between two GPUs: the NVLinks' bandwidth plus
//     a rung for the way through PCIe and the processors (see pair.go). The rung
//     counts for GPUs with NVLink too, since traffic to host memory and HCAs
//     goes that way: of equal NVLinks, those on one NUMA node go together.
//   - score(S) = |S| * the mean of pair over all pairs in S, rounded down; 0 for
//     one GPU. That is the bandwidth of a GPU to its peers, added up over the
//     GPUs of the pod: two sets of any sizes can be compared.
//   - value(R) = the mean, over the request sizes n = 1 to N, of the greatest
//     score(T) of n GPUs in R, 0 if R has fewer than n; N is the number of the
//     machine's GPUs. That is what the next pod gets of R at best, if every size
//     of request is equally likely.
//   - loss(S, A) = value(A) - value(A without S), for S taken of the free GPUs A.
//
// [Scores.Choose] gives the S with the greatest score(S) - loss(S, A); of equal ones the first,
// comparing the sorted lists of indices. So the pod at hand, which is certain, counts in full, and
// the next one with its probability. A single GPU has no score: the choice is the GPU with the
// least loss for the rest. The sum of the pairs that a choice cuts, which others call the loss,
// grows with the square of the rest: on a machine with one GPU off NVLink it would give that one to
// every pod.
//
// Up to [MaxExact] GPUs the choice is exact: tables of score and value over all sets are made once
// per machine (512 KiB and some 20 ms for 16 GPUs, 2 KiB for 8), and a request walks all sets of
// its size, 12,870 at most. Larger machines get a greedy choice; see greedy.go.
package preferred

import (
	"math/bits"
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
)

// MaxExact is the largest number of GPUs with exact choices.
const MaxExact = 16

// MaxGPUs is the number of GPUs in a mask; more are never chosen.
const MaxGPUs = 64

// Scores has the score of each pair of a machine's GPUs. It is immutable. Bit i of
// every mask is the GPU m.GPUs[i].
type Scores struct {
	n int
	// pairs is n x n, in MB/s.
	pairs []int32
	// usable are the GPUs that are not lost.
	usable uint64
	// rails are, for each GPU, the rails of the fabric HCAs next to it.
	rails []uint64
	// sets is nil for machines of more than MaxExact GPUs.
	sets *sets
}

// New computes the scores of m after the configuration has set the roles of its HCAs. It keeps the
// tables of old, the scores before the machine changed, if no link between GPUs changed; old may be
// nil.
func New(old *Scores, m *machine.Machine) *Scores {
	s := &Scores{n: min(len(m.GPUs), MaxGPUs)}
	for i := range s.n {
		if m.GPUs[i].Health.State != machine.Lost {
			s.usable |= 1 << i
		}
	}
	s.pairs = pairs(m, s.n)
	s.rails = rails(m, s.n)
	switch {
	case old != nil && old.n == s.n && slices.Equal(old.pairs, s.pairs):
		s.sets = old.sets
	case s.n <= MaxExact:
		s.sets = newSets(s.n, s.pairs)
	}
	return s
}

// Choose gives the best size GPUs of available, which has as many, that include must, which
// is among them and has no more. Lost GPUs are chosen only where must names them or the others
// do not suffice: the kubelet may not yet have received the loss, and a pod that it admits must
// get an answer.
func (s *Scores) Choose(available, must uint64, size int) uint64 {
	if sound := available&s.usable | must; bits.OnesCount64(sound) >= size {
		available = sound
	} else {
		must = sound
	}
	if s.sets == nil {
		return s.chooseGreedily(available, must, size)
	}
	return s.sets.choose(available, must, size)
}

// Score is score(S) in MB/s.
func (s *Scores) Score(set uint64) int {
	set &= s.all()
	if s.sets != nil {
		return int(s.sets.score[set])
	}
	return s.scoreOf(set)
}

// Loss is loss(S, A) in MB/s, for S taken of the free GPUs A. Lost GPUs in A
// are worth nothing.
func (s *Scores) Loss(set, free uint64) int {
	free &= s.usable
	return s.value(free) - s.value(free&^set)
}

func (s *Scores) value(set uint64) int {
	if s.sets != nil {
		return int(s.sets.value[set])
	}
	return s.valueGreedily(set)
}

func (s *Scores) all() uint64 { return 1<<s.n - 1 }
