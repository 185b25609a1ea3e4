package placement

import (
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

// order is the largest first; of equal items the last in the tree.
func order(a, b item) int {
	if c := compare(a, b); c != 0 {
		return c
	}
	return int(b.id - a.id)
}
