package worker

import (
	"cmp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/rdma"
)

// Metrics are the worker's figures, and what /healthz and /readyz answer.
type Metrics struct {
	passes, writes, beats, failures prometheus.Counter
	seconds                         prometheus.Histogram
	ports                           *prometheus.GaugeVec
	skipped                         prometheus.Gauge
	stale                           *prometheus.GaugeVec
	degraded, traffic               *prometheus.GaugeVec

	// lastBeat is the start of the last round, by the monotonic clock.
	lastBeat atomic.Pointer[time.Time]
	// isReady is set once the topology stands in the API server.
	isReady atomic.Bool
}

// NewMetrics registers the metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	with := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return with.NewCounter(prometheus.CounterOpts{Namespace: "heddle", Subsystem: "topology", Name: name, Help: help})
	}
	return &Metrics{
		passes:   counter("passes_total", "Passes over all sources."),
		writes:   counter("writes_total", "Writes of the NodeTopology's spec."),
		beats:    counter("heartbeats_total", "Heartbeats written."),
		failures: counter("write_failures_total", "Rounds that could not publish."),
		seconds: with.NewHistogram(prometheus.HistogramOpts{
			Namespace: "heddle", Subsystem: "topology", Name: "pass_seconds", Help: "Time of a pass.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		ports: with.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "heddle", Subsystem: "topology", Name: "ports",
			Help: "Ports of this node by the source that reported the switch behind them; none without one.",
		}, []string{"source"}),
		stale: with.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "heddle", Subsystem: "topology", Name: "source_stale_since_timestamp_seconds",
			Help: "Start of the silence of a source with an old answer in use, in seconds since 1970.",
		}, []string{"source"}),
		degraded: with.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "heddle", Subsystem: "topology", Name: "degraded_link",
			Help: "1 for each end of a link that is worse than its limit; what begins with switch at the switch's end.",
		}, []string{"device", "port", "what"}),
		traffic: with.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "heddle", Subsystem: "topology", Name: "port_congestion",
			Help: "Transmit waits (ticks) and PFC pause frames of a port per second, between the last two readings.",
		}, []string{"device", "port", "what"}),
		skipped: with.NewGauge(prometheus.GaugeOpts{
			Namespace: "heddle", Subsystem: "topology", Name: "skipped",
			Help: "Devices and sources that the last pass could not read.",
		}),
	}
}

// alive returns an error text unless a round began lately: three intervals, and
// the time that a round may take.
func (m *Metrics) alive(interval time.Duration) string {
	if last := m.lastBeat.Load(); last != nil && time.Since(*last) < 3*interval+passTime+4*requestTime {
		return ""
	}
	return "no round for three intervals"
}

// Ready returns an error text unless the topology was published at least once.
func (m *Metrics) Ready() string {
	if m.isReady.Load() {
		return ""
	}
	return "topology not published yet"
}

func (m *Metrics) pass(spec *v1alpha1.NodeTopologySpec, took time.Duration) {
	m.passes.Inc()
	m.seconds.Observe(took.Seconds())
	m.skipped.Set(float64(len(spec.Skipped)))
	m.stale.Reset()
	for _, s := range spec.Stale {
		m.stale.WithLabelValues(string(s.Source)).Set(float64(s.Since.Unix()))
	}
	m.ports.Reset()
	for i := range spec.Rails {
		m.ports.WithLabelValues(cmp.Or(string(spec.Rails[i].Source), "none")).Inc()
	}
}

func (m *Metrics) degradedLinks(found []v1alpha1.DegradedLink) {
	m.degraded.Reset()
	for i := range found {
		f := &found[i]
		device, port := cmp.Or(f.Netdev, f.HCA, f.ID), cmp.Or(f.Link, strconv.Itoa(int(f.Port)))
		m.degraded.WithLabelValues(device, port, strings.TrimSpace(f.End+" "+f.What)).Set(1)
	}
}

// congestion shows what a port waited between two readings.
func (m *Metrics) congestion(was, now rdma.CounterScan) {
	m.traffic.Reset()
	for id, c := range now.Ports {
		b, ok := was.Ports[id]
		if !ok {
			continue
		}
		show := func(what string, n int64) {
			m.traffic.WithLabelValues(cmp.Or(id.Netdev, id.HCA), strconv.Itoa(id.Port), what).
				Set(float64(max(n, 0)) / now.Time.Sub(was.Time).Seconds())
		}
		show("transmit-waits", c.TransmitWaits-b.TransmitWaits)
		show("pause-frames", c.Pauses-b.Pauses)
	}
}
