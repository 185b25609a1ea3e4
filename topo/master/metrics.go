package master

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// metrics show the newest snapshot when they are scraped.
type metrics struct {
	*Builder
	descs map[string]*prometheus.Desc
}

// Register adds the builder's metrics.
func (b *Builder) Register(r prometheus.Registerer) {
	m := &metrics{Builder: b, descs: map[string]*prometheus.Desc{}}
	for _, d := range []struct{ name, help, labels string }{
		{"generation", "Changes of the tree that this replica has seen.", ""},
		{"nodes", "Nodes by status.", "status"},
		{"groups", "Groups by kind.", "kind"},
		{"findings", "Ports and paths that are not as they should be, by kind.", "kind"},
		{"reports_ignored", "NodeTopologies that are not believed: see /v1/topology.", ""},
		{"stale_sources", "Nodes on which a source is silent, by source: its last good answer stands.", "source"},
		{
			"last_contact_timestamp_seconds",
			"Time of the last message of the API server on the longest silent watch, in seconds since 1970.", "",
		},
		{"gangs", "Gangs by state.", "state"},
		{"suspects", "Nodes and groups on which several gangs failed, by state.", "state"},
		{
			"tested_bandwidth_ratio",
			"Bandwidth of a port in its last heddle fabric test, as part of the expected one.", "node device port",
		},
	} {
		m.descs[d.name] = prometheus.NewDesc("heddle_topology_"+d.name, d.help, strings.Fields(d.labels), nil)
	}
	r.MustRegister(m)
}

// Describe is for prometheus.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		out <- d
	}
}

// Collect is for prometheus.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	show := func(name string, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(m.descs[name], prometheus.GaugeValue, value, labels...)
	}
	if at := m.options.Source.Contact(); !at.IsZero() {
		show("last_contact_timestamp_seconds", float64(at.UnixMilli())/1e3)
	}
	s, _ := m.latest.Get()
	if s == nil {
		return
	}
	show("generation", float64(s.Generation))
	show("nodes", float64(s.Tree.Nodes.Ready), v1alpha1.StatusReady)
	show("nodes", float64(s.Tree.Nodes.Degraded), v1alpha1.StatusDegraded)
	show("nodes", float64(s.Tree.Nodes.NotReady), v1alpha1.StatusNotReady)
	groups, findings := countElements(s)
	for kind, n := range groups {
		show("groups", float64(n), kind)
	}
	for kind, n := range findings {
		show("findings", float64(n), string(kind))
	}
	ignored := 0
	for _, n := range s.Nodes {
		if n.Ignored() != "" {
			ignored++
		}
		for _, t := range n.Tests() {
			if last := &t.Results[0]; last.ExpectedGbps > 0 {
				ratio := float64(last.Gbps) / float64(last.ExpectedGbps)
				show("tested_bandwidth_ratio", ratio, n.Name, cmp.Or(t.Netdev, t.HCA), strconv.Itoa(int(t.Port)))
			}
		}
	}
	show("reports_ignored", float64(ignored))
	for _, source := range s.StaleSources() {
		show("stale_sources", float64(source.Nodes), string(source.Source))
	}
	states, list := map[gang.Phase]int{}, s.GangList()
	for i := range list {
		states[list[i].State]++
	}
	for _, state := range gang.Phases() {
		show("gangs", float64(states[state]), string(state))
	}
	places := map[suspect.State]int{suspect.Suspect: 0, suspect.Doubt: 0}
	for _, p := range m.options.Source.Suspects().Places(m.options.Clock.Now()) {
		places[p.State]++
	}
	for state, n := range places {
		show("suspects", float64(n), string(state))
	}
}

// countElements counts groups and findings; kinds without any are 0.
func countElements(s *snapshot.Snapshot) (groups map[string]int, findings map[fabric.Fault]int) {
	groups = map[string]int{}
	for _, l := range s.Levels {
		groups[l.Kind] = 0
	}
	findings = map[fabric.Fault]int{
		fabric.Miscabled: 0, fabric.Dead: 0, fabric.Missing: 0, fabric.Duplicate: 0, fabric.BadPath: 0, fabric.Unseen: 0,
		fabric.Degraded: 0,
	}
	for _, e := range s.Tree.All() {
		if e.Kind != v1alpha1.KindNode {
			groups[e.Kind]++
		}
		for i := range e.Findings {
			findings[e.Findings[i].Kind]++
		}
	}
	return groups, findings
}

// stuck is the time without a turn after which the loop counts as dead.
const stuck = time.Minute

// Alive returns a description of the failure, or an empty string while the loop turns.
func (b *Builder) Alive() string {
	if at := b.turned.Load(); at != 0 {
		if age := b.options.Clock.Now().Sub(time.Unix(0, at)); age > stuck {
			return "the tree has not been updated for " + age.String()
		}
	}
	return ""
}
