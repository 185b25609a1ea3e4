package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the figures of one resource. The resource is a constant label:
// several plugins share a registry, and a resource served twice is an error.
type metrics struct {
	rpc           *prometheus.HistogramVec
	updates       prometheus.Histogram
	preferFaults  prometheus.Counter
	registrations prometheus.Counter
	registered    prometheus.Gauge
	claimed       *prometheus.GaugeVec
	faults        *prometheus.CounterVec
}

func opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "heddle", Subsystem: "resource", Name: name, Help: help}
}

func newMetrics() *metrics {
	seconds := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: "heddle", Subsystem: "resource", Name: name, Help: help,
			// 0.1 ms to 26 s: the kubelet gives up PreStartContainer after 30 s.
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}
	}
	return &metrics{
		rpc: prometheus.NewHistogramVec(
			seconds("rpc_seconds", "Time to answer the kubelet."), []string{"method", "code"}),
		updates: prometheus.NewHistogram(
			seconds("update_seconds", "Time from a change of the devices until a stream has sent it.")),
		preferFaults: prometheus.NewCounter(prometheus.CounterOpts(
			opts("preference_failures_total", "Allocations left to the kubelet's own choice, because the plugin's failed."))),
		registrations: prometheus.NewCounter(prometheus.CounterOpts(
			opts("registrations_total", "Registrations that the kubelet took."))),
		registered: prometheus.NewGauge(prometheus.GaugeOpts(
			opts("registered", "1 while the resource is registered with the running kubelet."))),
		claimed: prometheus.NewGaugeVec(prometheus.GaugeOpts(
			opts("claimed", "1 for another plugin, or DeviceClass, that serves the resource.")), []string{"owner"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("failures_total", "Steps of serving the resource that failed.")), []string{"step"}),
	}
}

// register adds the metrics, and those of the list, to a registry until done.
func (m *metrics) register(l *advertised, registerer prometheus.Registerer) (done func(), err error) {
	gauge := func(name, help string, value func(counts) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)),
			func() float64 { return float64(value(l.counts())) })
	}
	all := []prometheus.Collector{
		m.rpc, m.updates, m.preferFaults, m.registrations, m.registered, m.claimed, m.faults,
		gauge("capacity", "Devices in the list, healthy or not.", func(c counts) int { return c.capacity }),
		gauge("allocatable", "Healthy devices in the list.", func(c counts) int { return c.allocatable }),
		gauge("unhealthy", "Unhealthy devices in the list.", func(c counts) int { return c.capacity - c.allocatable }),
		gauge("withdrawn", "Listed devices that are offered no longer and wait for their holders.",
			func(c counts) int { return c.withdrawn }),
		gauge("streams", "Kubelets that watch the list.", func(c counts) int { return c.streams }),
	}
	for i, c := range all {
		if err := registerer.Register(c); err != nil {
			unregister(registerer, all[:i])
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return func() { unregister(registerer, all) }, nil
}

func unregister(registerer prometheus.Registerer, collectors []prometheus.Collector) {
	for _, c := range collectors {
		registerer.Unregister(c)
	}
}
