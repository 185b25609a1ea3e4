// Package metrics has the scheduler plugin's metrics: counters and histograms of what
// happens to gangs, and gauges that the controller and the scheduling cycles set.
package metrics

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	namespace, subsystem = "heddle", "scheduler"
	// noKind is the kind of a place that no group of the topology tree holds.
	noKind = "none"
	// maxRejected bounds the gangs that are labels of a metric.
	maxRejected = 10
	// capacityEvery is the age from which on the free capacity is taken again.
	capacityEvery = 10 * time.Second
)

// Metrics are safe for concurrent use.
type Metrics struct {
	duration             prometheus.Histogram
	plans                *prometheus.HistogramVec
	placed               *prometheus.CounterVec
	rejections, timeouts prometheus.Counter
	// Gauges are vectors, since one without a value is absent: a replica that waits
	// has none of gangs and GPUs.
	gangs, rejected, age, fresh, free, whole, largest *prometheus.GaugeVec

	registered atomic.Bool
	// capacity is when the capacity was taken last.
	capacity atomic.Pointer[time.Time]
}

// New returns metrics that nothing collects before Register.
func New() *Metrics {
	histogram := func(name, help string, first float64, buckets int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 4, buckets),
		}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
		}, labels)
	}
	return &Metrics{
		duration: prometheus.NewHistogram(histogram("gang_duration_seconds",
			"Time from the last pod that a gang needs until that many of its pods have a node.", 0.01, 10)),
		plans: prometheus.NewHistogramVec(histogram("gang_plan_duration_seconds",
			"Time of one plan for a gang and those that it runs with, by result: placed or refused.", 0.0001, 9),
			[]string{"result"}),
		placed: prometheus.NewCounterVec(counter("gangs_placed_total",
			"Gangs that started, by the kind of the lowest group that holds them: node, a kind of the topology tree, or none."),
			[]string{"kind"}),
		rejections: prometheus.NewCounter(counter("gang_refusals_total",
			"Times that a gang was rejected which had not been rejected before, or had had a plan since.")),
		timeouts: prometheus.NewCounter(counter("gang_timeouts_total",
			"Times that members gave their nodes back, because the others did not come in time.")),
		gangs: gauge("gangs", "Gangs of this scheduler's pods, by state.", "state"),
		rejected: gauge("gang_rejected_seconds",
			"For how long a gang that has its pods has been rejected; the ten that wait for longest.", "namespace", "podgroup"),
		age: gauge("map_age_seconds", "Time since topo-master confirmed the topology tree."),
		fresh: gauge("map_fresh",
			"1 if gangs are placed by the topology tree, 0 if it is too old or missing; absent if none is configured."),
		free:  gauge("gpus_free", "GPUs that no pod has or has reserved, on nodes that take pods."),
		whole: gauge("gpus_free_whole", "Those of gpus_free that are on nodes of which all GPUs are free."),
		largest: gauge("largest_gang_gpus",
			"GPUs of the largest gang of whole nodes that one group of a kind has room for.", "kind"),
	}
}

// Register adds the metrics to a registry.
func (m *Metrics) Register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{
		m.duration, m.plans, m.placed, m.rejections, m.timeouts,
		m.gangs, m.rejected, m.age, m.fresh, m.free, m.whole, m.largest,
	} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	m.registered.Store(true)
	return nil
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

// Rejection is a gang that has been rejected for some time.
type Rejection struct {
	Namespace, Name string
	For             time.Duration
}

// SetGangs sets the gangs by state, and those that have been rejected for longest,
// these first.
func (m *Metrics) SetGangs(states map[string]int, rejected []Rejection) {
	for state, n := range states {
		m.gangs.WithLabelValues(state).Set(float64(n))
	}
	m.rejected.Reset()
	for _, r := range rejected[:min(len(rejected), maxRejected)] {
		m.rejected.WithLabelValues(r.Namespace, r.Name).Set(r.For.Seconds())
	}
}

// SetTopology sets whether the topology tree is fresh and, unless there has been none,
// its age.
func (m *Metrics) SetTopology(fresh bool, confirmed, now time.Time) {
	m.fresh.WithLabelValues().Set(0)
	if fresh {
		m.fresh.WithLabelValues().Set(1)
	}
	if !confirmed.IsZero() {
		m.age.WithLabelValues().Set(now.Sub(confirmed).Seconds())
	}
}

// CapacityDue reports whether the free capacity is to be taken again.
func (m *Metrics) CapacityDue(now time.Time) bool {
	last := m.capacity.Load()
	return m.Registered() && (last == nil || now.Sub(*last) >= capacityEvery)
}

// SetCapacity sets the free GPUs, those on nodes of which all GPUs are free, and how
// many of the latter one group has at most, by its kind.
func (m *Metrics) SetCapacity(now time.Time, free, whole int64, largest map[string]int) {
	m.capacity.Store(&now)
	m.free.WithLabelValues().Set(float64(free))
	m.whole.WithLabelValues().Set(float64(whole))
	m.largest.Reset()
	for kind, gpus := range largest {
		m.largest.WithLabelValues(kind).Set(float64(gpus))
	}
}
