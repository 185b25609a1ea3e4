package placement_test

import (
	"math/rand/v2"
	"testing"

	"github.com/heddle-dev/heddle/topo/placement"
)

// crew is a gang of unlike pods: masters and workers, and what nodes have of
// processors and GPUs.
type crew struct {
	f       *forest
	free    [][2]int32
	needs   [2][2]int32
	masters int
	workers int
}

func (c *crew) fit(class int) []int32 {
	var out []int32
	for _, free := range c.free {
		out = append(out, c.most(free, class))
	}
	return out
}

func (c *crew) most(free [2]int32, class int) int32 {
	n := free[0] / c.needs[class][0]
	if gpus := c.needs[class][1]; gpus > 0 {
		n = min(n, free[1]/gpus)
	}
	return n
}

func (c *crew) together(node int32, pods []int32) bool {
	for r := range 2 {
		if pods[0]*c.needs[0][r]+pods[1]*c.needs[1][r] > c.free[node][r] {
			return false
		}
	}
	return true
}

// holds tells whether a part of the tree takes the crew, by trying every way
// to distribute the masters.
func (c *crew) holds(p *part) bool {
	nodes := p.nodes()
	var try func(i, masters, workers int) bool
	try = func(i, masters, workers int) bool {
		if i == len(nodes) {
			return masters == 0 && workers <= 0
		}
		free := c.free[nodes[i]]
		for m := 0; m <= masters && int32(m) <= c.most(free, 0); m++ {
			left := [2]int32{free[0] - int32(m)*c.needs[0][0], free[1] - int32(m)*c.needs[0][1]}
			if try(i+1, masters-m, workers-int(c.most(left, 1))) {
				return true
			}
		}
		return false
	}
	return try(0, c.masters, c.workers)
}

// tier is the lowest in which a part takes the crew; -1 if none does.
func (c *crew) tier() int {
	best := -1
	for _, p := range c.f.root.all() {
		if (best < 0 || p.tier < best) && c.holds(p) {
			best = p.tier
		}
	}
	return best
}

func newCrew(rng *rand.Rand, masters int) *crew {
	c := &crew{f: plant(rng, 1+rng.IntN(3), 3+rng.IntN(6)), masters: masters, workers: 1 + rng.IntN(8)}
	for range c.f.nodes {
		c.free = append(c.free, [2]int32{int32(rng.IntN(24)), int32(rng.IntN(9))})
	}
	c.needs = [2][2]int32{
		{int32(1 + rng.IntN(8)), int32(rng.IntN(3))},
		{int32(1 + rng.IntN(4)), int32(1 + rng.IntN(4))},
	}
	return c
}

func (c *crew) place(t *testing.T) (int, *placement.Refusal) {
	t.Helper()
	tree, err := placement.New(c.f.groups)
	if err != nil {
		t.Fatal(err)
	}
	plan, refusal := placement.Place(tree, &placement.Gang{Tasks: []placement.Task{
		{Name: "master", Class: 0, Pods: c.masters, GPUs: int(c.needs[0][1])},
		{Name: "worker", Class: 1, Pods: c.workers, GPUs: int(c.needs[1][1])},
	}}, &placement.Capacity{Fit: [][]int32{c.fit(0), c.fit(1)}, Together: c.together})
	return plan.Group.Tier, refusal
}

// A master and its workers reach the lowest tier that holds both.
func TestOneGuestIsOptimal(t *testing.T) {
	plans, refusals := 0, 0
	for seed := range uint64(6000) {
		c := newCrew(rand.New(rand.NewPCG(seed, 3)), 1)
		if c.needs[0][1] > int32(c.workers)*c.needs[1][1] {
			continue // Then the workers are the guests.
		}
		tier, refusal := c.place(t)
		want := c.tier()
		switch {
		case (refusal == nil) != (want >= 0):
			t.Fatalf("seed %d: %v, and tier %d would do: %+v", seed, refusal, want, c)
		case refusal != nil:
			refusals++
		case tier != want:
			t.Fatalf("seed %d: tier %d, and %d would do: %+v", seed, tier, want, c)
		default:
			plans++
		}
	}
	if plans < 1500 || refusals < 600 {
		t.Errorf("%d plans and %d refusals", plans, refusals)
	}
}

// Of gangs with many guests few miss the lowest tier.
func TestManyGuestsAreNearlyOptimal(t *testing.T) {
	plans, lost, higher := 0, 0, 0
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 4))
		c := newCrew(rng, 2+rng.IntN(4))
		tier, refusal := c.place(t)
		want := c.tier()
		switch {
		case want < 0 && refusal == nil:
			t.Fatalf("seed %d: planned what does not fit: %+v", seed, c)
		case want < 0:
			continue
		case refusal != nil:
			lost++
		case tier > want:
			higher++
		case tier < want:
			t.Fatalf("seed %d: tier %d, and %d is the lowest: %+v", seed, tier, want, c)
		}
		plans++
	}
	t.Logf("of %d gangs that fit %d are refused and %d reach a higher tier", plans, lost, higher)
	if lost*100 > plans || higher*100 > plans {
		t.Errorf("of %d gangs that fit %d are refused and %d reach a higher tier", plans, lost, higher)
	}
}
