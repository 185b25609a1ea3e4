package fabrictest

import (
	"maps"
	"slices"
)

// repeats is how often a slow flow is measured again; its best result counts.
const repeats = 2

// Test is a test of pairs in progress.
type Test struct {
	Ports   []Port
	rounds  [][]Flow
	results []Result
	again   int
	// gone are nodes that gave way to a job: the test goes on without.
	gone map[string]bool
}

// NewTest plans a test of ports on leaves with that many uplinks: each HCA alone first, then pairs on the same leaf,
// then pairs of leaves.
func NewTest(ports []Port, uplinks int) *Test {
	return &Test{Ports: ports, rounds: rounds(ports, uplinks), gone: map[string]bool{}}
}

// Left returns the number of rounds that are planned; slow flows add some.
func (t *Test) Left() int { return len(t.rounds) }

// Next returns the flows to measure at the same time, none if the test is over.
func (t *Test) Next() []Flow {
	gone := func(f Flow) bool { return t.gone[t.Ports[f.From].Node] || t.gone[t.Ports[f.To].Node] }
	for {
		if len(t.rounds) == 0 && t.again < repeats {
			t.again++
			t.rounds = apart(t.Ports, t.slow())
		}
		if len(t.rounds) == 0 {
			return nil
		}
		next := slices.DeleteFunc(t.rounds[0], gone)
		t.rounds = t.rounds[1:]
		if len(next) > 0 {
			return next
		}
	}
}

// slow returns the flows that are slow in any measure.
func (t *Test) slow() (flows []Flow) {
	for _, m := range measures(t.Ports, t.best()) {
		for i := range m.slow {
			if f := m.slow[i].Flow; !slices.Contains(flows, f) {
				flows = append(flows, f)
			}
		}
	}
	return flows
}

// Add adds the results of a round.
func (t *Test) Add(results []Result) {
	t.results = append(t.results, results...)
	for i := range results {
		if node := results[i].Gone; node != "" {
			t.gone[node] = true
		}
	}
}

// Gone returns the nodes that gave way to a job.
func (t *Test) Gone() []string { return slices.Sorted(maps.Keys(t.gone)) }

// best returns the best result of each flow, without flows of nodes that gave way.
func (t *Test) best() (all []Result) {
	at := map[Flow]int{}
	for _, r := range t.results {
		i, ok := at[r.Flow]
		switch {
		case r.Gone != "":
		case !ok:
			at[r.Flow], all = len(all), append(all, r)
		default:
			b := &all[i]
			b.Gbps, b.Latency = max(b.Gbps, r.Gbps), lower(b.Latency, r.Latency)
			if r.Failure == "" {
				b.Failure = ""
			}
		}
	}
	return all
}
