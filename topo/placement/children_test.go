package placement

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The two ways to sort agree, and both are the order that pick documents.
func TestSortedItems(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 9))
		var p picker
		for id := range 49 + rng.IntN(100) {
			it := item{id: int32(id), slots: rng.Int64N(5)}
			it.room = it.slots + rng.Int64N(3)*int64(seed%2)
			p.items = append(p.items, it)
		}
		want := slices.Clone(p.items)
		slices.SortFunc(want, order)
		p.sort()
		if diff := cmp.Diff(want, p.sorted, cmp.AllowUnexported(item{})); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

// Of all sets of items the picker takes the best.
func TestPickIsOptimal(t *testing.T) {
	var p picker
	picked, rejected := 0, 0
	for seed := range uint64(20000) {
		rng := rand.New(rand.NewPCG(seed, 10))
		p.items = p.items[:0]
		for id := range 1 + rng.IntN(9) {
			it := item{id: int32(id), slots: rng.Int64N(6)}
			it.room = 2*it.slots + rng.Int64N(2)
			it.spare = rng.IntN(3) == 0
			p.items = append(p.items, it)
		}
		a := amount{blocks: rng.Int64N(20), short: int64(rng.IntN(2))}
		if a == (amount{}) {
			continue
		}
		want := best(p.items, a)
		chosen, left := p.pick(a)
		got := slices.Clone(chosen)
		if left != (amount{}) {
			if want != nil {
				t.Fatalf("seed %d: not enough, and %v do for %+v", seed, want, a)
			}
			if len(got) != len(p.items) {
				t.Fatalf("seed %d: %v are not all of %v", seed, got, p.items)
			}
			rejected++
			continue
		}
		picked++
		total := int64(0)
		for _, it := range got {
			total += it.slots
		}
		if last := got[len(got)-1]; total < a.slots() && !last.spare || slices.ContainsFunc(got, func(it item) bool {
			c := compare(it, last)
			return (total >= a.slots() || it.spare) && (c > 0 || c == 0 && it.id > last.id)
		}) {
			t.Fatalf("seed %d: %v is the last of %v", seed, last, got)
		}
		slices.SortFunc(got, order)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(item{})); diff != "" {
			t.Fatalf("seed %d: %+v of %v (-want +got):\n%s", seed, a, p.items, diff)
		}
	}
	if picked < 5000 || rejected < 2000 {
		t.Errorf("%d sets and %d rejections", picked, rejected)
	}
}

// order is the largest first; of equal items the last in the tree.
func order(a, b item) int {
	if c := compare(a, b); c != 0 {
		return c
	}
	return int(b.id - a.id)
}

// best tries every set of items.
func best(items []item, a amount) (best []item) {
	for set := range uint(1) << len(items) {
		if best != nil && bits.OnesCount(set) > len(best) {
			continue
		}
		var in []item
		slots, spare := int64(0), false
		for i := range items {
			if set&(1<<i) != 0 {
				in = append(in, items[i])
				slots += items[i].slots
				spare = spare || items[i].spare
			}
		}
		if holds := slots > a.blocks || slots == a.blocks && (a.short == 0 || spare); !holds {
			continue
		}
		slices.SortFunc(in, order)
		// What comes later in the order is smaller, or earlier in the tree.
		if best == nil || len(in) < len(best) || slices.CompareFunc(in, best, order) > 0 {
			best = in
		}
	}
	return best
}
