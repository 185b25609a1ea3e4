package fabrictest

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// fleet is a simulated fabric: nodes with one HCA for each rail, a leaf for each rail of 16 nodes, and uplinks to spines
// between which flows are spread by a hash that the test does not know.
type fleet struct {
	ports   []Port
	uplinks int
	rng     *rand.Rand
	noise   float64
	// slow is the place with a fault, uplink which of its uplinks if it is of that kind, factor what is left of the
	// bandwidth, direction of a cable 0 for both, 1 to send, 2 to receive.
	slow      Place
	uplink    int
	direction int
	factor    float64
	// latency is the factor of the latency instead.
	latency bool
}

func newFleet(nodes, rails, uplinks int, seed uint64) *fleet {
	f := &fleet{uplinks: uplinks, rng: rand.New(rand.NewPCG(seed, 35)), noise: 0.05, factor: 1}
	for n := range nodes {
		for r := range rails {
			f.ports = append(f.ports, Port{
				Node: fmt.Sprintf("n%04d", n), HCA: fmt.Sprintf("mlx5_%d", r), ID: fmt.Sprint(r), Number: 1,
				Rail: int32(r), Leaf: fmt.Sprintf("leaf-%d-%d", n/16, r), Gbps: 390,
			})
		}
	}
	return f
}

func (f *fleet) through(flow Flow) bool {
	for _, s := range way(f.ports, flow) {
		if s.Place != f.slow {
			continue
		}
		if f.slow.Kind == Cable {
			return f.direction == 0 || s.receives == (f.direction == 2)
		}
		if f.slow.Kind == Uplinks {
			hash := uint64(flow.From)*0x9E3779B97F4A7C15 ^ uint64(flow.To)*0xC2B2AE3D27D4EB4F
			hash ^= hash >> 29
			hash *= 0xBF58476D1CE4E5B9
			return int((hash>>32)%uint64(f.uplinks)) == f.uplink
		}
		return true
	}
	return false
}

func (f *fleet) measure(flow Flow) Result {
	noise := func() float64 { return 1 + f.noise*f.rng.NormFloat64() }
	r := Result{Flow: flow, Gbps: min(390*noise(), 396), Latency: 2 * noise()}
	if flow.From == flow.To {
		r.Latency = noise()
	}
	if f.through(flow) {
		if f.latency {
			r.Latency *= f.factor
		} else {
			r.Gbps *= f.factor
		}
	}
	return r
}

// test runs the test and returns the faults and the number of rounds.
func (f *fleet) test(t *testing.T) (faults []Fault, rounds int) {
	t.Helper()
	test := NewTest(f.ports, f.uplinks)
	for flows := test.Next(); flows != nil; flows = test.Next() {
		rounds++
		var results []Result
		for _, flow := range flows {
			results = append(results, f.measure(flow))
		}
		test.Add(results)
	}
	faults, _ = test.Faults()
	return faults, rounds
}

// fleets is the number of fleets of each test.
var fleets = flag.Int("fleets", 35, "number of simulated fleets")

// TestFaultsInFleets names one fault in each of some fleets of 16 to 1,024 nodes, whose seeds are fixed.
func TestFaultsInFleets(t *testing.T) {
	named, most := map[Kind]int{}, map[int]int{}
	for seed := range uint64(*fleets) {
		rng := rand.New(rand.NewPCG(seed, 1))
		nodes := 16 << (seed % 7)
		f := newFleet(nodes, 8, 8, seed)
		f.factor = 0.2 + 0.5*rng.Float64()
		kinds := []Kind{Cable, HCA, Leaf, Uplinks}
		if nodes <= 32 {
			kinds = kinds[:2] // One leaf, or one pair of leaves, for each rail: nothing to compare with.
		}
		kind := kinds[rng.IntN(len(kinds))]
		port := rng.IntN(len(f.ports))
		f.slow = Place{Kind: kind, Port: port}
		if kind == Leaf || kind == Uplinks {
			f.slow = Place{Kind: kind, Port: -1, Leaf: f.ports[port].Leaf}
		}
		f.uplink, f.direction = rng.IntN(8), rng.IntN(3)
		faults, rounds := f.test(t)
		most[nodes] = max(most[nodes], rounds)
		if len(faults) == 1 && slices.Equal(faults[0].places, []Place{f.slow}) && faults[0].What == Bandwidth {
			named[kind]++
			named[""]++
		} else {
			t.Logf("seed %d, %d nodes, %v to %.2f: %v", seed, nodes, f.slow, f.factor, faults)
		}
	}
	t.Logf("named exactly: %v; most rounds by nodes: %v", named, most)
	if need := int(math.Ceil(0.99 * float64(*fleets))); named[""] < need {
		t.Errorf("%d of %d named exactly, want at least %d", named[""], *fleets, need)
	}
}

// TestHealthyFleets names nothing in fleets without a fault.
func TestHealthyFleets(t *testing.T) {
	for seed := range uint64(*fleets) * 10 {
		f := newFleet(16<<(seed%3), 1+int(seed%8), 4, 1e6+seed)
		if faults, _ := f.test(t); len(faults) > 0 {
			t.Errorf("seed %d: %v", seed, faults)
		}
	}
}
