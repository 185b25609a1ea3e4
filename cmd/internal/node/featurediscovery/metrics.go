package featurediscovery

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// metrics are the daemon's metrics, and what /healthz and /readyz answer.
type metrics struct {
	labels    prometheus.Gauge
	taints    prometheus.Gauge
	kept      prometheus.Gauge
	problems  prometheus.Gauge
	skipped   prometheus.Gauge
	conflicts *prometheus.GaugeVec
	probes    *prometheus.GaugeVec
	writes    prometheus.Counter
	failures  prometheus.Counter
	seconds   prometheus.Histogram

	// lastBeat is when a round began, by the clock that nothing sets.
	lastBeat atomic.Pointer[time.Time]
	// isReady is set once the sink took the labels.
	isReady atomic.Bool
}

// newMetrics registers the metrics with r.
func newMetrics(r prometheus.Registerer) *metrics {
	auto := promauto.With(r)
	gauge := func(name, help string) prometheus.Gauge {
		return auto.NewGauge(prometheus.GaugeOpts{Name: "heddle_" + name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return auto.NewGaugeVec(prometheus.GaugeOpts{Name: "heddle_" + name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: "heddle_" + name, Help: help})
	}
	return &metrics{
		labels:    gauge("node_labels", "Labels that this node should carry."),
		taints:    gauge("node_taints", "Taints that this node should carry."),
		kept:      gauge("node_labels_kept", "1 while labels and taints stay although a GPU driver is absent."),
		problems:  gauge("node_label_problems", "Labels left out, by rule errors or invalid values."),
		skipped:   gauge("machine_skipped_devices", "Devices, or parts, that a scan could not read."),
		conflicts: vec("node_conflict", "1 for every label or taint left to another writer.", "kind", "key"),
		probes:    vec("machine_probe", "1 for the state that each reader of the machine is in.", "probe", "state"),
		writes:    counter("node_writes_total", "Requests that changed the Node."),
		failures:  counter("node_write_failures_total", "Rounds with a failed write."),
		seconds: auto.NewHistogram(prometheus.HistogramOpts{
			Namespace: "heddle", Name: "node_write_seconds", Help: "Time to bring the Node up to date.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
	}
}

// ready returns what is wrong unless the labels were written at least once.
func (m *metrics) ready() string {
	if m.isReady.Load() {
		return ""
	}
	return "labels not written yet"
}

func (m *metrics) round(from *machine.Machine, want labels.Result, r nodesync.Result, err error, d time.Duration) {
	m.labels.Set(float64(len(want.Labels)))
	m.taints.Set(float64(len(want.Taints)))
	m.problems.Set(float64(len(want.Problems)))
	m.skipped.Set(float64(len(from.Skipped)))
	m.probes.Reset()
	for _, p := range from.Probes {
		m.probes.WithLabelValues(p.Name, string(p.State)).Set(1)
	}
	m.conflicts.Reset()
	for _, c := range r.Conflicts {
		m.conflicts.WithLabelValues(c.Kind, c.Key).Set(1)
	}
	m.writes.Add(float64(r.Writes))
	if err != nil {
		m.failures.Inc()
	}
	m.seconds.Observe(d.Seconds())
}
