package fabrictest

import (
	"cmp"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// maxResults is how many results of a port are kept, as in NodeTopology.
const maxResults = 10

// Results returns the result of each port; the time is zero of one that was not measured. Values are medians of the
// port's flows with other ports, or with itself without any.
func (t *Test) Results(at metav1.Time) []v1alpha1.LinkResult {
	flows := make([][]Result, len(t.Ports))
	for _, r := range t.best() {
		flows[r.From] = append(flows[r.From], r)
		if r.To != r.From {
			flows[r.To] = append(flows[r.To], r)
		}
	}
	faults, _ := t.Faults()
	out := make([]v1alpha1.LinkResult, len(t.Ports))
	for i := range t.Ports {
		if len(flows[i]) == 0 {
			continue
		}
		good := slices.DeleteFunc(flows[i], func(r Result) bool { return r.Failure != "" })
		if paired := func(r Result) bool { return r.From != r.To }; slices.ContainsFunc(good, paired) {
			good = slices.DeleteFunc(good, func(r Result) bool { return !paired(r) })
		}
		r := &out[i]
		r.Time, r.ExpectedGbps = at, whole(t.Ports[i].Gbps)
		r.Gbps = whole(median(good, func(r Result) float64 { return r.Gbps }))
		r.LatencyNanoseconds = whole(1000 * median(good, func(r Result) float64 { return r.Latency }))
		for j := range faults {
			if f := &faults[j]; r.Fault == "" && f.concerns(&t.Ports[i], i) {
				r.Fault, r.What, r.Value, r.Limit = string(f.Kind), f.What, f.Value, f.Limit
			}
		}
	}
	return out
}

// median returns the lower median, 0 of nothing.
func median(flows []Result, value func(Result) float64) float64 {
	if len(flows) == 0 {
		return 0
	}
	slices.SortFunc(flows, func(a, b Result) int { return cmp.Compare(value(a), value(b)) })
	return value(flows[(len(flows)-1)/2])
}

// Record adds the result of a port to the ones that its node's NodeTopology has.
func Record(tests []v1alpha1.LinkTest, p *Port, result *v1alpha1.LinkResult) []v1alpha1.LinkTest {
	entry := v1alpha1.LinkTest{HCA: p.HCA, ID: p.ID, Port: p.Number, Netdev: p.Netdev}
	at, known := slices.BinarySearchFunc(tests, entry, func(a, b v1alpha1.LinkTest) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Port, b.Port), strings.Compare(a.Netdev, b.Netdev))
	})
	if !known {
		tests = slices.Insert(tests, at, entry)
	}
	old := tests[at].Results
	tests[at].Results = append([]v1alpha1.LinkResult{*result}, old[:min(len(old), maxResults-1)]...)
	return tests
}

func whole(value float64) int32 { return int32(math.Round(min(value, math.MaxInt32))) }

// concerns reports whether a fault is of a port, its HCA, or its leaf.
func (f *Fault) concerns(p *Port, at int) bool {
	return slices.ContainsFunc(f.places, func(place Place) bool {
		return place.Port == at || place.Port < 0 && place.Leaf == p.Leaf
	})
}

// source is the source of the limits of a test.
const source = "heddle fabric test"

// Degraded returns the ports that the last test found to be slow, unless their link has changed since.
func Degraded(tests []v1alpha1.LinkTest, rails []v1alpha1.Rail) (out []v1alpha1.DegradedLink) {
	for i := range tests {
		t := &tests[i]
		if len(t.Results) == 0 || t.Results[0].Fault == "" {
			continue
		}
		r := &t.Results[0]
		changed := func(rail v1alpha1.Rail) bool {
			return rail.ID == t.ID && rail.Port == t.Port && rail.Netdev == t.Netdev && rail.Since != nil &&
				r.Time.Before(rail.Since)
		}
		if !slices.ContainsFunc(rails, changed) {
			out = append(out, v1alpha1.DegradedLink{
				HCA: t.HCA, ID: t.ID, Port: t.Port, Netdev: t.Netdev, What: r.What, Value: r.Value, Limit: r.Limit,
				Source: source + ": " + r.Fault, Since: r.Time, Time: r.Time,
			})
		}
	}
	return out
}
