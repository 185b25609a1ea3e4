package master

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
)

// gauges show the current view when they are read.
type gauges struct {
	master     *Master
	generation *prometheus.Desc
	nodes      *prometheus.Desc
	groups     *prometheus.Desc
	findings   *prometheus.Desc
	ignored    *prometheus.Desc
	contact    *prometheus.Desc
	gangs      *prometheus.Desc
}

// Register adds the master's metrics.
func (m *Master) Register(r prometheus.Registerer) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("heddle_topo_"+name, help, labels, nil)
	}
	r.MustRegister(&gauges{
		master:     m,
		generation: desc("generation", "Changes of the tree that this replica saw."),
		nodes:      desc("nodes", "Nodes by status.", "status"),
		groups:     desc("groups", "Groups by kind.", "kind"),
		findings:   desc("findings", "Ports and paths that are not as they should be, by kind.", "kind"),
		ignored:    desc("reports_ignored", "NodeTopologies that are not believed: see /v1/topology."),
		contact: desc("last_contact_seconds",
			"When the API server last said anything on the watch that is silent for longest, in seconds since 1970."),
		gangs: desc("gangs", "Gangs by state.", "state"),
	})
}

// Describe is for prometheus.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.generation, g.nodes, g.groups, g.findings, g.ignored, g.contact, g.gangs} {
		out <- d
	}
}

// Collect is for prometheus.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	show := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if at := g.master.options.Source.Contact(); !at.IsZero() {
		show(g.contact, float64(at.UnixMilli())/1e3)
	}
	v, _ := g.master.Current()
	if v == nil {
		return
	}
	show(g.generation, float64(v.Generation))
	show(g.nodes, float64(v.Tree.Nodes.Ready), v1alpha1.StatusReady)
	show(g.nodes, float64(v.Tree.Nodes.Degraded), v1alpha1.StatusDegraded)
	show(g.nodes, float64(v.Tree.Nodes.NotReady), v1alpha1.StatusNotReady)
	groups, findings := map[string]int{}, map[fabric.Fault]int{}
	for _, l := range v.Levels {
		groups[l.Kind] = 0
	}
	for _, kind := range []fabric.Fault{
		fabric.Miscabled, fabric.Dead, fabric.Missing, fabric.Duplicate, fabric.BadPath, fabric.Unseen,
	} {
		findings[kind] = 0
	}
	for _, e := range v.Tree.All() {
		if e.Kind != v1alpha1.KindNode {
			groups[e.Kind]++
		}
		for i := range e.Findings {
			findings[e.Findings[i].Kind]++
		}
	}
	for kind, n := range groups {
		show(g.groups, float64(n), kind)
	}
	for kind, n := range findings {
		show(g.findings, float64(n), string(kind))
	}
	ignored := 0
	for _, d := range v.Nodes.All() {
		if d.Ignored() != "" {
			ignored++
		}
	}
	show(g.ignored, float64(ignored))
	if v.Gangs != nil {
		states, list := map[gang.Phase]int{}, v.GangList()
		for i := range list {
			states[list[i].State]++
		}
		for _, state := range gang.Phases() {
			show(g.gangs, float64(states[state]), string(state))
		}
	}
}

// Ready says what is missing, "" if answers are whole.
func (m *Master) Ready() string {
	if v, _ := m.Current(); v == nil {
		return "the API server has not been read yet"
	}
	return ""
}

// Alive says what is wrong, "" if the loop goes round.
func (m *Master) Alive() string {
	if at := m.turned.Load(); at != nil && m.options.Now().Sub(*at) > stuck {
		return "the tree has not been looked at for " + m.options.Now().Sub(*at).String()
	}
	return ""
}
