package preferred

import "math/bits"

// Machines of more than MaxExact GPUs hang from PCIe switches in their dozens;
// their sets cannot be listed. The choice is then greedy: from must, or else
// from every GPU in turn, the GPU with the most to the set joins it, and of the
// sets so grown the one with the greatest score - loss is taken. value is the
// same with the sets that grow this way. It is deterministic and, for GPUs in
// equal groups, the optimum.

// chooseGreedily is [Scores.Choose] for a possible request.
func (s *Scores) chooseGreedily(available, must uint64, size int) uint64 {
	best, chosen := -1, uint64(0)
	consider := func(seed uint64) {
		set := s.grow(seed, available, size, nil)
		if sum := s.scoreOf(set) + s.valueGreedily(available&^set); sum > best {
			best, chosen = sum, set
		}
	}
	if must != 0 {
		consider(must)
		return chosen
	}
	for seeds := available; seeds != 0; seeds &= seeds - 1 {
		consider(seeds & -seeds)
	}
	return chosen
}

// valueGreedily is value(R) with greedy sets.
func (s *Scores) valueGreedily(set uint64) int {
	var best [MaxGPUs + 1]int
	have := bits.OnesCount64(set)
	for seeds := set; seeds != 0; seeds &= seeds - 1 {
		s.grow(seeds&-seeds, set, have, &best)
	}
	sum := 0
	for _, score := range best {
		sum += score
	}
	return sum / max(s.n, 1)
}

// grow adds GPUs of pool to set until it has size of them: each time the one
// with the greatest sum of pairs to the set, of equals the first. best, unless
// nil, keeps the greatest score of each size on the way.
func (s *Scores) grow(set, pool uint64, size int, best *[MaxGPUs + 1]int) uint64 {
	var ties [MaxGPUs]int64
	sum := int64(0)
	join := func(g int) {
		for other := range s.n {
			ties[other] += int64(s.pairs[g*s.n+other])
		}
	}
	for in := set; in != 0; in &= in - 1 {
		g := bits.TrailingZeros64(in)
		sum += ties[g]
		join(g)
	}
	for k := bits.OnesCount64(set); k < size; {
		most, next := int64(-1), 0
		for out := pool &^ set; out != 0; out &= out - 1 {
			if g := bits.TrailingZeros64(out); ties[g] > most {
				most, next = ties[g], g
			}
		}
		sum += most
		join(next)
		set |= 1 << next
		k++
		if best != nil {
			best[k] = max(best[k], int(2*sum/int64(k-1)))
		}
	}
	return set
}

// scoreOf is score(S) without a table.
func (s *Scores) scoreOf(set uint64) int {
	sum, k := int64(0), bits.OnesCount64(set)
	if k < 2 {
		return 0
	}
	for a := set; a != 0; a &= a - 1 {
		for b := a & (a - 1); b != 0; b &= b - 1 {
			sum += int64(s.pairs[bits.TrailingZeros64(a)*s.n+bits.TrailingZeros64(b)])
		}
	}
	return int(2 * sum / int64(k-1))
}
