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

// Record adds a test's results of a node's ports to the ones that its NodeTopology has.
func (t *Test) Record(tests []v1alpha1.LinkTest, node, versions string, at metav1.Time) []v1alpha1.LinkTest {
	tests = slices.Clone(tests)
	gbps, latency := t.medians()
	faults, _ := t.Faults()
	for i := range t.Ports {
		p := &t.Ports[i]
		measured := func(r Result) bool { return (r.From == i || r.To == i) && r.Gone == "" }
		if p.Node != node || !slices.ContainsFunc(t.results, measured) {
			continue
		}
		result := v1alpha1.LinkResult{
			Time: at, Gbps: whole(gbps[i]), ExpectedGbps: whole(p.Gbps),
			LatencyNanoseconds: whole(latency[i] * 1000), Versions: versions,
		}
		for j := range faults {
			if f := &faults[j]; f.concerns(p, i) && result.Fault == "" {
				result.Fault, result.What, result.Value, result.Limit = string(f.Kind), f.What, f.Value, f.Limit
			}
		}
		entry := v1alpha1.LinkTest{HCA: p.HCA, ID: p.ID, Port: p.Number, Netdev: p.Netdev}
		find := func(o v1alpha1.LinkTest) bool { return o.ID == p.ID && o.Port == p.Number && o.Netdev == p.Netdev }
		if at := slices.IndexFunc(tests, find); at >= 0 {
			entry.Results = tests[at].Results
			tests = slices.Delete(tests, at, at+1)
		}
		entry.Results = append([]v1alpha1.LinkResult{result}, entry.Results[:min(len(entry.Results), maxResults-1)]...)
		tests = append(tests, entry)
	}
	slices.SortFunc(tests, func(a, b v1alpha1.LinkTest) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Port, b.Port), strings.Compare(a.Netdev, b.Netdev))
	})
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
