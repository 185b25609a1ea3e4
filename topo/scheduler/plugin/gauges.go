package plugin

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/topo/gang"
)

// maxRejected bounds the gangs that are named in metrics: those that have been
// refused for longest.
const maxRejected = 10

// gauges show what is when they are read. A replica that waits shows its map
// alone: what it knows of gangs, the one that schedules says.
type gauges struct {
	plugin                                           *Plugin
	gangs, rejected, age, fresh, free, whole, places *prometheus.Desc
}

func newGauges(p *Plugin) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("heddle_scheduler_"+name, help, labels, nil)
	}
	return &gauges{
		plugin: p,
		gangs:  desc("gangs", "Gangs of this scheduler's pods, by state.", "state"),
		rejected: desc("gang_rejected_seconds",
			"For how long a gang that has its pods has been refused; the ten that wait for longest.", "namespace", "podgroup"),
		age: desc("map_age_seconds", "Time since topo-master said last that the map is this one."),
		fresh: desc("map_fresh",
			"1 if gangs are placed by the map, 0 if it is too old or there has been none; absent if none is configured."),
		free: desc("gpus_free", "GPUs that nobody has or was promised, on nodes that take pods."),
		whole: desc("gpus_free_whole",
			"Those of gpus_free that are on nodes of which all GPUs are free."),
		places: desc("largest_gang_gpus",
			"GPUs of the largest gang of whole nodes that one group of a kind has room for.", "kind"),
	}
}

// Describe is for prometheus.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.gangs, g.rejected, g.age, g.fresh, g.free, g.whole, g.places} {
		out <- d
	}
}

// Collect is for prometheus.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	show := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	p, now := g.plugin, time.Now()
	if p.args.TopoMaster != "" {
		m, _ := p.source.Current()
		if !m.Confirmed.IsZero() {
			show(g.age, now.Sub(m.Confirmed).Seconds())
		}
		fresh := 0.0
		if p.source.Fresh(m, now) {
			fresh = 1
		}
		show(g.fresh, fresh)
	}
	if !p.leading() {
		return
	}
	states, rejected := p.count()
	for state, n := range states {
		show(g.gangs, float64(n), string(state))
	}
	for i := range rejected {
		c := &rejected[i]
		show(g.rejected, p.book.now().Sub(c.rejected).Seconds(), c.key.Namespace, c.key.Name)
	}
	room := p.lately()
	if room.at.IsZero() {
		return
	}
	show(g.free, float64(room.free))
	show(g.whole, float64(room.whole))
	for kind, gpus := range room.largest {
		show(g.places, float64(gpus), kind)
	}
}

// count are this scheduler's gangs by state, and those that have been refused
// for longest.
func (p *Plugin) count() (states map[gang.Phase]int, rejected []crowd) {
	states = map[gang.Phase]int{gang.Queued: 0, gang.Starting: 0, gang.Running: 0, gang.Unknown: 0, gang.Succeeded: 0}
	for _, c := range p.crowds() {
		if !c.ours {
			continue
		}
		states[c.state().Phase]++
		if !c.rejected.IsZero() {
			rejected = append(rejected, c)
		}
	}
	slices.SortFunc(rejected, func(a, b crowd) int {
		return cmp.Or(a.rejected.Compare(b.rejected), cmp.Compare(a.key.String(), b.key.String()))
	})
	return states, rejected[:min(len(rejected), maxRejected)]
}
