package quota_test

import (
	"cmp"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// random is a node of up to 9 GPUs with consumers.
func random(rng *rand.Rand) []quota.GPU {
	all := make([]quota.GPU, 1+rng.IntN(9))
	zones, nodes := rng.IntN(5), 1+rng.IntN(3)
	for i := range all {
		all[i] = quota.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, MemoryMiB: 20 * gib, Slots: 1 + rng.IntN(8), NUMA: rng.IntN(nodes+1) - 1, Zone: rng.IntN(zones + 1),
		}
		if rng.IntN(4) == 0 {
			all[i].MemoryMiB = 12 * gib
		}
		if rng.IntN(20) == 0 {
			all[i].Unhealthy = "ill"
		}
		for range rng.IntN(5) {
			if r := randomRequest(rng); all[i].Reject(&r).None() {
				take(&all[i], &r)
			}
		}
	}
	return all
}

// costs are the documented numbers of each GPU, written another way.
func costs(gpus []quota.GPU, r *quota.Request, how config.Placement) [][]int {
	all := make([][]int, len(gpus))
	for i, c := range gpus {
		dv, dm := r.VCore, int(r.MemoryMiB)
		if dm == 0 {
			dm = int(c.MemoryMiB)
		}
		v, m := 100-c.VCore, int(c.MemoryMiB-c.UsedMiB)
		idle, whole := 0, 0
		if c.Consumers == 0 {
			idle = 1
			for j, other := range gpus {
				if other.Consumers == 0 && other.Reject(r).None() && (i == j || c.Zone > 0 && c.Zone == other.Zone) {
					whole++
				}
			}
		}
		if how == binpack {
			all[i] = []int{idle, v*dm + m*dv - dv*dm, (v - dv) * (m - dm), whole}
			continue
		}
		fractions := []int{(100 - v + dv) * 10_000, (int(c.UsedMiB) + dm) * 1_000_000 / int(c.MemoryMiB)}
		slices.Sort(fractions)
		all[i] = []int{fractions[1], fractions[0], c.Consumers, whole}
	}
	return all
}

// TestPlaceIsBest compares one GPU with all others, and several with every
// other set of as many: none is better by what Place documents.
func TestPlaceIsBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	placed := [2]int{}
	var out []int
	for state := range 10_000 {
		gpus, r := random(rng), randomRequest(rng)
		r.GPUs = max(1, rng.IntN(6)-1)
		how := binpack
		if state%4 == 0 {
			how = spread
		}
		var able []int
		for i := range gpus {
			if gpus[i].Reject(&r).None() {
				able = append(able, i)
			}
		}
		var ok bool
		out, ok = quota.Place(gpus, &r, how, out)
		if ok != (len(able) >= r.GPUs) {
			t.Fatalf("state %d: placed %v with %d able GPUs for %d", state, ok, len(able), r.GPUs)
		}
		if !ok {
			continue
		}
		placed[min(1, r.GPUs-1)]++
		if len(out) != r.GPUs || !slices.IsSorted(out) || len(slices.Compact(slices.Clone(out))) != r.GPUs {
			t.Fatalf("state %d: %v are no %d different GPUs", state, out, r.GPUs)
		}
		if want := best(gpus, able, r.GPUs, costs(gpus, &r, how)); !slices.Equal(want, out) {
			t.Fatalf("state %d: %v, want %v of %v for %+v of\n%+v", state, out, want, able, r, gpus)
		}
		for _, i := range out {
			take(&gpus[i], &r)
			if c := &gpus[i]; c.VCore > 100 || c.UsedMiB > c.MemoryMiB || c.Consumers > c.Slots || c.Exclusive && c.Consumers > 1 {
				t.Fatalf("state %d: over-committed %+v", state, *c)
			}
		}
	}
	if placed[0] < 2000 || placed[1] < 1000 {
		t.Errorf("placed %v: the test tries too little", placed)
	}
}

// best is the best set of n able GPUs, by looking at every set.
func best(gpus []quota.GPU, able []int, n int, costs [][]int) []int {
	var choice []int
	var key []int
	for mask := range 1 << len(able) {
		if bits.OnesCount(uint(mask)) != n {
			continue
		}
		var set []int
		for k, i := range able {
			if mask>>k&1 == 1 {
				set = append(set, i)
			}
		}
		if k := rank(gpus, able, set, costs); choice == nil || slices.Compare(k, key) < 0 {
			choice, key = set, k
		}
	}
	return choice
}

// rank is how good a set is; less is better.
func rank(gpus []quota.GPU, able, set []int, costs [][]int) []int {
	if len(set) == 1 {
		return append(slices.Clone(costs[set[0]]), set[0])
	}
	zone := func(i int) int {
		if gpus[i].Zone == 0 {
			return -1 - i
		}
		return gpus[i].Zone
	}
	numa := func(i int) int {
		if gpus[i].NUMA < 0 {
			return -1 - i
		}
		return gpus[i].NUMA
	}
	n := len(set)
	of := func(among []int, by func(int) int, as int) []int {
		return slices.DeleteFunc(slices.Clone(among), func(j int) bool { return by(j) != by(as) })
	}
	// in ranks a set by the group that all of it is in, those in none last.
	in := func(among []int, by func(int) int) []int {
		group := of(among, by, set[0])
		if len(of(set, by, set[0])) < n {
			return []int{1, 0, 0, 0, 0, 0, 0}
		}
		return append([]int{0, len(group)}, append(sum(group, n, costs), group[0])...)
	}
	inZone := in(able, zone)
	if inZone[0] == 0 {
		node := in(of(able, zone, set[0]), numa)
		return slices.Concat(inZone, node, sum(set, n, costs), set)
	}
	// No zone has all: every set has this rank, or a better one with all in one.
	scope := able
	node := in(able, numa)
	if node[0] == 0 {
		scope = of(able, numa, set[0])
	}
	// Whole zones first, the largest; then the smallest that has the rest.
	var steps []int
	left, rest := slices.Clone(scope), slices.Clone(set)
	for len(rest) > 0 {
		steps = append(steps, step(left, rest, zone, costs)...)
		taken := -steps[len(steps)-1]
		group := of(left, zone, taken-1)
		if len(of(rest, zone, taken-1)) < min(len(rest), len(group)) {
			return append(slices.Concat(inZone, node), 1) // It leaves some of the group and takes others.
		}
		left = slices.DeleteFunc(left, func(i int) bool { return slices.Contains(group, i) })
		rest = slices.DeleteFunc(rest, func(i int) bool { return slices.Contains(group, i) })
		steps = steps[:len(steps)-1]
	}
	return slices.Concat(inZone, node, []int{0}, steps, sum(set, n, costs), set)
}

// step ranks the zone that a set takes first, and names it by its last GPU.
func step(left, rest []int, zone func(int) int, costs [][]int) []int {
	var key, choice []int
	for _, i := range rest {
		group := slices.DeleteFunc(slices.Clone(left), func(j int) bool { return zone(j) != zone(i) })
		k := []int{1, -len(group)}
		if len(group) >= len(rest) {
			k = []int{0, len(group)}
		}
		k = slices.Concat(k, sum(group, min(len(rest), len(group)), costs), group[:1])
		if choice == nil || slices.Compare(k, key) < 0 {
			key, choice = k, group
		}
	}
	return append(key, -1-choice[0])
}

// sum adds up the n least costs of a group.
func sum(group []int, n int, costs [][]int) []int {
	sorted := slices.SortedStableFunc(slices.Values(group), func(i, j int) int {
		return cmp.Or(slices.Compare(costs[i], costs[j]), cmp.Compare(i, j))
	})
	total := make([]int, 4)
	for _, i := range sorted[:n] {
		for k, v := range costs[i] {
			total[k] += v
		}
	}
	return total
}
