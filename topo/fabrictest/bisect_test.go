package fabrictest

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/utils/ptr"
)

// collective is a simulated collective: its slowest part decides.
type collective struct {
	rng *rand.Rand
	// node has a slow rail, or all of them are slow at -1; factor is what is left. between is the first node of the
	// second half of nodes between which links are slow, 0 for none.
	node, rail int
	between    int
	factor     float64
	rails      int
}

func (c *collective) run(nodes []string, rail *int32) (float64, error) {
	value := 180 * (1 - 0.01*math.Log2(float64(len(nodes)))) * (1 + 0.05*c.rng.NormFloat64())
	if rail != nil {
		value /= float64(c.rails)
	}
	if slices.Contains(nodes, name(c.node)) && (c.rail < 0 || rail == nil || int(*rail) == c.rail) {
		value *= c.factor
	}
	if at := name(c.between); c.between > 0 && slices.Min(nodes) < at && slices.Max(nodes) >= at {
		value *= c.factor
	}
	return value, nil
}

func name(node int) string { return fmt.Sprintf("node-%03d", node) }

// names returns the names of n nodes.
func names(n int) (all []string) {
	for node := range n {
		all = append(all, name(node))
	}
	return all
}

func TestBisect(t *testing.T) {
	const seeds = 2000
	named := 0
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n, limit := 3+rng.IntN(254), 0.0
		c := &collective{rng: rng, node: rng.IntN(n), rail: rng.IntN(9) - 1, factor: 0.1 + 0.5*rng.Float64(), rails: 8}
		if seed%2 == 0 {
			limit = 0.8 * 170
		}
		got, err := Bisect(names(n), []int32{0, 1, 2, 3, 4, 5, 6, 7}, limit, c.run)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(got.Nodes, []string{name(c.node)}) && int(ptr.Deref(got.Rail, -1)) == c.rail {
			named++
		} else {
			t.Logf("seed %d: %+v, want node %d rail %d to %.2f, limit %v", seed, got, c.node, c.rail, c.factor, limit)
		}
		if most := 2*bits.Len(uint(n-1)) + 8; got.Runs > most {
			t.Errorf("seed %d: %d runs of %d nodes, want at most %d", seed, got.Runs, n, most)
		}
	}
	t.Logf("%d of %d named exactly", named, seeds)
	if named < seeds*99/100 {
		t.Errorf("%d of %d named exactly", named, seeds)
	}
}

func TestBisectOther(t *testing.T) {
	for _, tt := range []struct {
		name  string
		c     collective
		n     int
		limit float64
		want  []string
		runs  int
	}{
		{name: "healthy", c: collective{node: -1}, n: 16, runs: 3},
		{name: "healthy with a limit", c: collective{node: -1}, n: 16, limit: 120, runs: 1},
		{name: "slow everywhere", c: collective{node: -1}, n: 4, limit: 400, want: names(1), runs: 3},
		{name: "links between the halves", c: collective{node: -1, between: 4, factor: 0.3}, n: 8, runs: 3, want: names(8)},
		{name: "two nodes", c: collective{node: 1, rail: -1, factor: 0.3}, n: 2, limit: 120, want: names(2), runs: 1},
		{name: "two nodes without a limit", c: collective{node: 1, rail: -1, factor: 0.3}, n: 2, runs: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.rng, tt.c.rails = rand.New(rand.NewPCG(1, 1)), 1
			got, err := Bisect(names(tt.n), []int32{0}, tt.limit, tt.c.run)
			if err != nil || !slices.Equal(got.Nodes, tt.want) || got.Runs != tt.runs {
				t.Errorf("%+v, %v; want nodes %v in %d runs", got, err, tt.want, tt.runs)
			}
		})
	}
}

func TestBisectTwoRails(t *testing.T) {
	c := collective{rng: rand.New(rand.NewPCG(1, 1)), node: 2, rail: 1, factor: 0.3, rails: 2}
	if got, err := Bisect(names(4), []int32{0, 1}, 100, c.run); err != nil || !slices.Equal(got.Nodes, []string{name(2)}) || ptr.Deref(got.Rail, -1) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBisectStops(t *testing.T) {
	fault := errors.New("the nodes gave way")
	if _, err := Bisect(names(8), []int32{0}, 0, func([]string, *int32) (float64, error) { return 0, fault }); !errors.Is(err, fault) {
		t.Errorf("%v", err)
	}
}
