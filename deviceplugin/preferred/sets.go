package preferred

import (
	"encoding/json"
	"fmt"
	"math/bits"
)

// sets is score and value of every set of a machine's GPUs, by mask.
type sets struct {
	score, value []int32
}

func newSets(n int, pairs []int32) *sets {
	size := 1 << n
	s := &sets{score: make([]int32, size), value: make([]int32, size)}
	// First the sums of pairs: a set is its lowest GPU and the others.
	for set := 1; set < size; set++ {
		low := bits.TrailingZeros(uint(set))
		rest := set & (set - 1)
		sum := s.score[rest]
		for others := rest; others != 0; others &= others - 1 {
			sum += pairs[low*n+bits.TrailingZeros(uint(others))]
		}
		s.score[set] = sum
	}
	for set := range s.score {
		if k := bits.OnesCount(uint(set)); k > 1 {
			// |S| * the mean of |S|(|S|-1)/2 pairs of this sum.
			s.score[set] = int32(2 * int64(s.score[set]) / int64(k-1)) //nolint:gosec // at most MaxExact * maxPair
		}
	}
	s.fillValue(n)
	return s
}

// fillValue computes value of every set, one request size after the other: the
// best k GPUs of a set of more than k are the best k of it without one of them.
// Sets without a GPU have smaller masks, so one pass upward suffices.
func (s *sets) fillValue(n int) {
	sum := make([]int64, len(s.score))
	best := make([]int32, len(s.score))
	for k := 2; k <= n; k++ {
		for set := range best {
			switch have := bits.OnesCount(uint(set)); {
			case have < k:
				continue
			case have == k:
				best[set] = s.score[set]
			default:
				var most int32
				for left := set; left != 0; left &= left - 1 {
					most = max(most, best[set&^(left&-left)])
				}
				best[set] = most
			}
			sum[set] += int64(best[set])
		}
	}
	for set := range sum {
		s.value[set] = int32(sum[set] / int64(max(n, 1))) //nolint:gosec // a mean of scores
	}
}

// choose is [Scores.Choose] for a possible request.
func (s *sets) choose(available, must uint64, size int) uint64 {
	w := walk{sets: s, available: available, best: -1}
	w.add(must, available&^must, size-bits.OnesCount64(must))
	return w.chosen
}

// walk visits all sets of one size in the order of their sorted indices, so
// that the first of equals is the one to keep.
type walk struct {
	*sets
	available uint64
	best      int32
	chosen    uint64
}

// add visits every set that is set and need more GPUs of pool.
func (w *walk) add(set, pool uint64, need int) {
	if need == 0 {
		w.visit(set)
		return
	}
	for left := bits.OnesCount64(pool); left >= need; left-- {
		lowest := pool & -pool
		pool ^= lowest
		if need == 1 {
			w.visit(set | lowest)
			continue
		}
		w.add(set|lowest, pool, need-1)
	}
}

// visit keeps a set if it is better. value(A) is the same for all of them:
// score(S) - loss(S, A) is greatest where score(S) + value(A without S) is.
func (w *walk) visit(set uint64) {
	if sum := w.score[set] + w.value[w.available&^set]; sum > w.best {
		w.best, w.chosen = sum, set
	}
}

// Entry describes the GPUs that a request for N GPUs would get now.
type Entry struct {
	N int
	// Score is score(S) of the best choice, Loss what it costs the rest, both
	// in MB/s. A scheduler that prefers nodes by weight*Score - lossWeight*Loss
	// gives large pods the best-connected nodes and small ones the leftovers.
	Score, Loss int
	// HCAs is the number of fabric HCAs with a working port next to the chosen GPUs: below the same
	// host bridge or closer, virtual functions of one port counted once.
	HCAs int
}

// Table reports what requests of every size would get of the free GPUs, by size.
// Sizes that do not fit have no entry. Lost GPUs are not free.
func (s *Scores) Table(free uint64) []Entry {
	free &= s.usable
	entries := make([]Entry, 0, bits.OnesCount64(free))
	for n := 1; n <= bits.OnesCount64(free); n++ {
		set := s.Choose(free, 0, n)
		entries = append(entries, Entry{N: n, Score: s.Score(set), Loss: s.Loss(set, free), HCAs: s.Aligned(set)})
	}
	return entries
}

// Aligned is Entry.HCAs of any set of GPUs.
func (s *Scores) Aligned(set uint64) int {
	near := uint64(0)
	for left := set & s.all(); left != 0; left &= left - 1 {
		near |= s.rails[bits.TrailingZeros64(left)]
	}
	return bits.OnesCount64(near)
}

// Annotation returns the JSON of a table, for the annotation
// [github.com/heddle-dev/heddle/api/wellknown.GPUTopology]:
//
//	{"1":{"score":0,"loss":59750,"hcas":1},"2":{…}}
//
// The keys are in numerical order without blanks, so that equal tables are equal texts. An empty
// table is {}: no GPU is free.
func Annotation(entries []Entry) string {
	b := []byte{'{'}
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `"%d":{"score":%d,"loss":%d,"hcas":%d}`, e.N, e.Score, e.Loss, e.HCAs)
	}
	return string(append(b, '}'))
}

// mostMetaX is the largest value of [Scores.MetaX]: HAMi subtracts values from it.
const mostMetaX = 2000

// MetaX returns what requests for GPUs of every size would get of the free ones as MetaX's device plugin writes it,
// for the annotations [github.com/heddle-dev/heddle/api/wellknown.MetaXScores] and MetaXLosses: the sum over the pairs
// of chosen GPUs, and over those that the choice separates, in GB/s. HAMi's issue 1075 shows a table of MetaX's: its
// loss is 0 for all free GPUs.
func (s *Scores) MetaX(free uint64) (scores, losses string) {
	score, loss := map[int]int{}, map[int]int{}
	for _, e := range s.Table(free) {
		set := s.Choose(free, 0, e.N)
		var inside, across int
		for a := free & s.usable; a != 0; a &= a - 1 {
			for b := a & (a - 1); b != 0; b &= b - 1 {
				i, j := bits.TrailingZeros64(a), bits.TrailingZeros64(b)
				switch bits.OnesCount64(set & (1<<i | 1<<j)) {
				case 2:
					inside += int(s.pairs[i*s.n+j])
				case 1:
					across += int(s.pairs[i*s.n+j])
				}
			}
		}
		score[e.N], loss[e.N] = min(inside/1000, mostMetaX), min(across/1000, mostMetaX)
	}
	of := func(values map[int]int) string {
		text, _ := json.Marshal(values) // It has numbers only, and sorts the keys.
		return string(text)
	}
	return of(score), of(loss)
}
