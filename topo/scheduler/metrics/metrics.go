// Package metrics has the scheduler plugin's metrics.
//
// Counters and histograms are updated where things happen. Gauges are collected
// from the last State and Capacity, which the controller and the scheduling cycle
// publish as values: a scrape takes no lock of theirs.
package metrics

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// noKind is the kind of a place that no group of the topology tree holds.
const noKind = "none"

// State is of all gangs at one moment.
type State struct {
	// Gangs are this scheduler's, by phase.
	Gangs map[string]int
	// Rejected have their pods and no nodes, those that wait for longest first.
	Rejected []Rejected
}

// Rejected is a gang that is rejected since some time.
type Rejected struct {
	Namespace, Name string
	Since           time.Time
}

// maxRejected bounds the gangs that are labels of a metric.
const maxRejected = 10

// Capacity is what of the GPUs is free at one moment.
type Capacity struct {
	At time.Time
	// Free are all free GPUs, Whole those on nodes of which all GPUs are free, and
	// Largest is the most of the latter in one group, by kind.
	Free, Whole int64
	Largest     map[string]int
}

// capacityEvery is the age from which on a capacity is taken again.
const capacityEvery = 10 * time.Second

// Metrics implements prometheus.Collector.
type Metrics struct {
	topology *topologyclient.Client

	duration             prometheus.Histogram
	plans                *prometheus.HistogramVec
	placed               *prometheus.CounterVec
	rejections, timeouts prometheus.Counter

	gangs, rejected, age, fresh, free, whole, largest *prometheus.Desc

	registered atomic.Bool
	// state is nil in a replica that does not lead: what it knows of gangs is what
	// the leader publishes.
	state    atomic.Pointer[State]
	capacity atomic.Pointer[Capacity]
}

// New returns metrics that nothing collects before Register.
func New(topology *topologyclient.Client) *Metrics {
	options := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "heddle", Subsystem: "scheduler", Name: name, Help: help}
	}
	histogram := func(name, help string, first float64, buckets int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: "heddle", Subsystem: "scheduler", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 4, buckets),
		}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("heddle_scheduler_"+name, help, labels, nil)
	}
	return &Metrics{
		topology: topology,
		duration: prometheus.NewHistogram(histogram("gang_duration_seconds",
			"Time from the last pod that a gang needs until that many of its pods have a node.", 0.01, 10)),
		plans: prometheus.NewHistogramVec(histogram("gang_plan_duration_seconds",
			"Time of one plan for a gang and those that it runs with, by result: placed or refused.", 0.0001, 9),
			[]string{"result"}),
		placed: prometheus.NewCounterVec(prometheus.CounterOpts(options("gangs_placed_total",
			"Gangs that started, by the kind of the lowest group that holds them: node, a kind of the topology tree, or none.")),
			[]string{"kind"}),
		rejections: prometheus.NewCounter(prometheus.CounterOpts(options("gang_refusals_total",
			"Times that a gang was rejected which had not been rejected before, or had had a plan since."))),
		timeouts: prometheus.NewCounter(prometheus.CounterOpts(options("gang_timeouts_total",
			"Times that members gave their nodes back, because the others did not come in time."))),

		gangs: desc("gangs", "Gangs of this scheduler's pods, by state.", "state"),
		rejected: desc("gang_rejected_seconds",
			"For how long a gang that has its pods has been rejected; the ten that wait for longest.", "namespace", "podgroup"),
		age: desc("map_age_seconds", "Time since topo-master confirmed the topology tree."),
		fresh: desc("map_fresh",
			"1 if gangs are placed by the topology tree, 0 if it is too old or there has been none; absent if none is configured."),
		free: desc("gpus_free", "GPUs that no pod has or has reserved, on nodes that take pods."),
		whole: desc("gpus_free_whole",
			"Those of gpus_free that are on nodes of which all GPUs are free."),
		largest: desc("largest_gang_gpus",
			"GPUs of the largest gang of whole nodes that one group of a kind has room for.", "kind"),
	}
}

// Register adds the metrics to a registry.
func (m *Metrics) Register(r prometheus.Registerer) error {
	err := r.Register(m)
	m.registered.Store(err == nil)
	return err
}

// Registered reports whether the metrics are collected.
func (m *Metrics) Registered() bool { return m.registered.Load() }

// Planned records a plan.
func (m *Metrics) Planned(took time.Duration, ok bool) {
	result := "placed"
	if !ok {
		result = "refused"
	}
	m.plans.WithLabelValues(result).Observe(took.Seconds())
}

// Placed records that a gang starts, and the kind of the group that holds it.
func (m *Metrics) Placed(kind string) { m.placed.WithLabelValues(cmp.Or(kind, noKind)).Inc() }

// Started records how long a gang that has its pods took to have its nodes.
func (m *Metrics) Started(took time.Duration) { m.duration.Observe(took.Seconds()) }

// Rejected records that a gang is rejected.
func (m *Metrics) Rejected() { m.rejections.Inc() }

// TimedOut records that members gave their nodes back.
func (m *Metrics) TimedOut() { m.timeouts.Inc() }

// SetState publishes the state of all gangs.
func (m *Metrics) SetState(s *State) { m.state.Store(s) }

// CapacityDue reports whether the capacity is to be taken again.
func (m *Metrics) CapacityDue(now time.Time) bool {
	last := m.capacity.Load()
	return m.Registered() && (last == nil || now.Sub(last.At) >= capacityEvery)
}

// SetCapacity publishes what is free.
func (m *Metrics) SetCapacity(c *Capacity) { m.capacity.Store(c) }

// Describe is for prometheus.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.duration, m.plans, m.placed, m.rejections, m.timeouts} {
		c.Describe(out)
	}
	for _, d := range []*prometheus.Desc{m.gangs, m.rejected, m.age, m.fresh, m.free, m.whole, m.largest} {
		out <- d
	}
}

// Collect is for prometheus.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.duration, m.plans, m.placed, m.rejections, m.timeouts} {
		c.Collect(out)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	now := time.Now()
	if m.topology.Configured() {
		tree, _ := m.topology.Current()
		if !tree.Confirmed.IsZero() {
			gauge(m.age, now.Sub(tree.Confirmed).Seconds())
		}
		fresh := 0.0
		if tree.Fresh(now) {
			fresh = 1
		}
		gauge(m.fresh, fresh)
	}
	state, capacity := m.state.Load(), m.capacity.Load()
	if state == nil {
		return
	}
	for phase, n := range state.Gangs {
		gauge(m.gangs, float64(n), phase)
	}
	for _, g := range state.Rejected[:min(len(state.Rejected), maxRejected)] {
		gauge(m.rejected, now.Sub(g.Since).Seconds(), g.Namespace, g.Name)
	}
	if capacity == nil {
		return
	}
	gauge(m.free, float64(capacity.Free))
	gauge(m.whole, float64(capacity.Whole))
	for kind, gpus := range capacity.Largest {
		gauge(m.largest, float64(gpus), kind)
	}
}
