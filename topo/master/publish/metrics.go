package publish

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	leader    prometheus.Gauge
	writes    *prometheus.CounterVec
	failures  *prometheus.CounterVec
	conflicts prometheus.Gauge
	absent    *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_topo_leader", Help: "1 while this replica writes.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_topo_writes_total", Help: "Requests that changed something, by what was written.",
		}, []string{"what"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_topo_write_failures_total", Help: "Writes that failed, by what was written.",
		}, []string{"what"}),
		conflicts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_topo_label_conflicts", Help: "Labels that are left to another field manager.",
		}),
		absent: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_topo_export_absent", Help: "1 if an export is on and its CRD is not installed.",
		}, []string{"what"}),
	}
	r.MustRegister(m.leader, m.writes, m.failures, m.conflicts, m.absent)
	return m
}

// count notes the outcome of a write and hands it on.
func (m *metrics) count(what string, err error) error {
	if err != nil {
		m.failures.WithLabelValues(what).Inc()
	} else {
		m.writes.WithLabelValues(what).Inc()
	}
	return err
}
