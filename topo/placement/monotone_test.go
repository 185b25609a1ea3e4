package placement_test

import (
	"math/rand/v2"
	"testing"

	"github.com/heddle-dev/heddle/topo/placement"
)

// More room, a smaller gang, fewer nodes to avoid: none of it makes a plan
// worse, and none makes one impossible.
func TestMoreRoomIsNeverWorse(t *testing.T) {
	plans := 0
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 6))
		f := plant(rng, 1+rng.IntN(3), 4+rng.IntN(20))
		tree, err := placement.New(f.groups)
		if err != nil {
			t.Fatal(err)
		}
		fit := make([]int32, f.nodes)
		for i := range fit {
			fit[i] = int32(rng.IntN(4))
		}
		g := placement.Gang{
			Tasks: workers(1 + rng.IntN(12)), Slice: 16 * rng.IntN(2),
			Avoid:   []int32{int32(rng.IntN(f.nodes))},
			Require: []string{"", "leaf", "spine"}[rng.IntN(3)],
		}
		plan, rejection := placement.Place(tree, &g, &placement.Capacity{Fit: [][]int32{fit}})
		if rejection != nil {
			continue
		}
		plans++
		more := append([]int32(nil), fit...)
		for range rng.IntN(4) {
			more[rng.IntN(f.nodes)]++
		}
		less := g
		less.Tasks = workers(1 + rng.IntN(g.Tasks[0].Pods))
		freer := g
		freer.Avoid = nil
		for _, tt := range []struct {
			name string
			gang *placement.Gang
			fit  []int32
		}{{"more room", &g, more}, {"a smaller gang", &less, fit}, {"nothing to avoid", &freer, fit}} {
			other, rejection := placement.Place(tree, tt.gang, &placement.Capacity{Fit: [][]int32{tt.fit}})
			if rejection != nil || other.Group.Tier > plan.Group.Tier {
				t.Fatalf("seed %d: %s: %v, %+v, it was %+v", seed, tt.name, rejection, other, plan)
			}
		}
	}
	if plans < 1000 {
		t.Errorf("%d plans", plans)
	}
}
