package preferred

import "math/bits"

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
			s.score[set] = scoreOfSum(s.score[set], k)
		}
	}
	s.fillValue(n)
	return s
}

// scoreOfSum is |S| * the mean of |S|(|S|-1)/2 pairs of this sum.
func scoreOfSum(sum int32, k int) int32 {
	return int32(2 * int64(sum) / int64(k-1)) //nolint:gosec // at most MaxExact * maxPair
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
