package fabrictest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

const (
	// MinBandwidth is the part of the expected bandwidth below which a flow is slow.
	MinBandwidth = 0.8
	// maxLatency is the multiple of the usual latency above which a flow is slow.
	maxLatency = 2
	// usual is the number of flows that make a usual value.
	usual = 3
)

// measure has the flows that one measure judges.
type measure struct {
	what string
	// format is of values, empty if there are none.
	format string
	slow   []slowFlow
	good   []Flow
}

// slowFlow is a flow with a value beyond its limit.
type slowFlow struct {
	Flow
	value, limit float64
}

// excess is how far the value is beyond the limit, as their ratio.
func (f *slowFlow) excess() float64 { return max(f.value/f.limit, f.limit/f.value) }

// measures sorts flows into slow and good ones. A bandwidth is compared with the links', or with the usual one of like
// flows if that is lower: a fabric in which all are equally slow has no slow place. A latency is compared with the
// usual one.
func measures(ports []Port, results []Result) []measure {
	failure, bandwidth, latency := measure{what: Failure}, measure{what: Bandwidth, format: "%.3g Gb/s"},
		measure{what: Latency, format: "%.1f us"}
	gbps, micros := usualValues(ports, results)
	for _, r := range results {
		failure.add(r.Flow, 0, 0, r.Failure != "")
		if r.Failure != "" {
			continue
		}
		of := sortOf(ports, r.Flow)
		expected := MinBandwidth * lower(lower(ports[r.From].Gbps, ports[r.To].Gbps), gbps[of])
		bandwidth.add(r.Flow, r.Gbps, expected, r.Gbps < expected)
		if most := maxLatency * micros[of]; most > 0 && r.Latency > 0 {
			latency.add(r.Flow, r.Latency, most, r.Latency > most)
		}
	}
	return []measure{failure, bandwidth, latency}
}

func (m *measure) add(f Flow, value, limit float64, slow bool) {
	if slow {
		m.slow = append(m.slow, slowFlow{f, value, limit})
	} else {
		m.good = append(m.good, f)
	}
}

// usualValues returns the usual bandwidth and latency of each sort of flows, if there are enough: of HCAs alone the
// median, and of pairs what the best tenth reaches, since of few nodes one bad one spoils most pairs.
func usualValues(ports []Port, results []Result) (gbps, micros map[sort]float64) {
	all := map[sort][]Result{}
	for _, r := range results {
		if of := sortOf(ports, r.Flow); r.Failure == "" {
			all[of] = append(all[of], r)
		}
	}
	gbps, micros = map[sort]float64{}, map[sort]float64{}
	for of, results := range all {
		best := (len(results) - 1) / 10
		if of.self {
			best = len(results) / 2
		}
		if len(results) >= usual {
			slices.SortFunc(results, func(a, b Result) int { return cmp.Compare(b.Gbps, a.Gbps) })
			gbps[of] = results[best].Gbps
			slices.SortFunc(results, func(a, b Result) int { return cmp.Compare(a.Latency, b.Latency) })
			micros[of] = results[best].Latency
		}
	}
	return gbps, micros
}

// lower returns the lower of two values that are known.
func lower(a, b float64) float64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// sort has the flows that should have the same results: of an HCA with itself, on a leaf, or between leaves, at a rate.
type sort struct {
	self, across bool
	gbps         float64
}

func sortOf(ports []Port, f Flow) sort {
	a, b := &ports[f.From], &ports[f.To]
	return sort{f.From == f.To, a.Leaf != b.Leaf, lower(a.Gbps, b.Gbps)}
}

// step is a place on a flow's way, in a direction.
type step struct {
	Place
	receives bool
}

// way returns the places that a flow goes through. A flow of a port with itself does not leave the HCA.
func way(ports []Port, f Flow) (steps []step) {
	at := func(kind Kind, port int, receives bool) step { return step{Place{Kind: kind, Port: port}, receives} }
	if f.From == f.To {
		return []step{at(HCA, f.From, false)}
	}
	steps = []step{at(HCA, f.From, false), at(HCA, f.To, false), at(Cable, f.From, false), at(Cable, f.To, true)}
	from, to := ports[f.From].Leaf, ports[f.To].Leaf
	for _, leaf := range []string{from, to} {
		if leaf != "" {
			steps = append(steps, step{Place: Place{Leaf, -1, leaf}})
		}
		if leaf != "" && from != to {
			steps = append(steps, step{Place: Place{Uplinks, -1, leaf}})
		}
	}
	return slices.Compact(steps)
}

// Faults names the places that explain the slow flows, those that explain the most first. unexplained are slow flows
// whose every part works in other flows.
func (t *Test) Faults() (faults []Fault, unexplained []Flow) {
	for _, m := range measures(t.Ports, t.best()) {
		found, left := m.faults(t.Ports)
		faults = append(faults, found...)
		for i := range left {
			if f := left[i].Flow; !slices.Contains(unexplained, f) {
				unexplained = append(unexplained, f)
			}
		}
	}
	return faults, unexplained
}

// faults takes the place that explains the most slow flows, and again with the flows that are left. A good flow clears
// the places on its way, except uplinks: another flow may take another uplink.
func (m *measure) faults(ports []Port) (faults []Fault, left []slowFlow) {
	cleared := map[step]bool{}
	for _, f := range m.good {
		for _, s := range way(ports, f) {
			cleared[s] = s.Kind != Uplinks
		}
	}
	left = m.slow
	for places := most(counts(ports, left, cleared)); places != nil; places = most(counts(ports, left, cleared)) {
		through := func(s step) bool { return slices.Contains(places, s.Place) && !cleared[s] }
		var explained, others []slowFlow
		for _, f := range left {
			if slices.ContainsFunc(way(ports, f.Flow), through) {
				explained = append(explained, f)
			} else {
				others = append(others, f)
			}
		}
		faults, left = append(faults, m.fault(ports, places, explained)), others
	}
	return faults, left
}

// most returns the places with the highest count, of these the smallest.
func most(counts map[Place]int) []Place {
	places := slices.SortedFunc(maps.Keys(counts), func(a, b Place) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Leaf, b.Leaf))
	})
	n := 0
	for n < len(places) && counts[places[n]] == counts[places[0]] && places[n].Kind == places[0].Kind {
		n++
	}
	return places[:n]
}

// counts returns how many of the flows each place explains that no good flow clears. Uplinks explain flows that nothing
// else explains, and only several with other leaves.
func counts(ports []Port, flows []slowFlow, cleared map[step]bool) map[Place]int {
	out, others := map[Place]int{}, map[Place]map[string]bool{}
	for _, f := range flows {
		steps := slices.DeleteFunc(way(ports, f.Flow), func(s step) bool { return cleared[s] })
		only := !slices.ContainsFunc(steps, func(s step) bool { return s.Kind != Uplinks })
		for _, s := range steps {
			if s.Kind != Uplinks {
				out[s.Place]++
			} else if only {
				if others[s.Place] == nil {
					others[s.Place] = map[string]bool{}
				}
				others[s.Place][ports[f.From].Leaf], others[s.Place][ports[f.To].Leaf] = true, true
			}
		}
	}
	if len(out) == 0 {
		for p, leaves := range others {
			if len(leaves) > 2 { // Its own among them.
				out[p] = len(leaves) - 1
			}
		}
	}
	return out
}

// fault describes the places that explain some slow flows, with the worst of them.
func (m *measure) fault(ports []Port, places []Place, slow []slowFlow) Fault {
	f := Fault{
		Kind: places[0].Kind, What: m.what, Value: "failed", Limit: "a result", Flows: len(slow), places: places,
	}
	for i := range places {
		f.Where = append(f.Where, places[i].name(ports))
	}
	if m.format != "" {
		worst := slices.MaxFunc(slow, func(a, b slowFlow) int { return cmp.Compare(a.excess(), b.excess()) })
		f.Value, f.Limit = fmt.Sprintf(m.format, worst.value), fmt.Sprintf(m.format, worst.limit)
	}
	return f
}
