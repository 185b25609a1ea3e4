package health

import "github.com/prometheus/client_golang/prometheus"

// newXIDs counts error reports. The driver knows less than 200 numbers.
func newXIDs() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "heddle_gpu_xids_total",
		Help: "Error reports of the GPU driver, by GPU, number and what it means for the GPU.",
	}, []string{"gpu", "xid", "policy"})
}

// unhealthy collects the unhealthy devices of the present snapshot.
type unhealthy struct{ monitor *Monitor }

func unhealthyDesc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_device_unhealthy",
		"1 for every device that is unhealthy, by UUID or identity, and why.",
		[]string{"kind", "device", "cause"}, nil)
}

// Describe implements prometheus.Collector.
func (unhealthy) Describe(c chan<- *prometheus.Desc) { c <- unhealthyDesc() }

// Collect implements prometheus.Collector.
func (u unhealthy) Collect(c chan<- prometheus.Metric) {
	s := u.monitor.Snapshot()
	for _, part := range []struct {
		kind   string
		states map[string]State
	}{{"gpu", s.GPUs}, {"hca", s.HCAs}} {
		for id, state := range part.states {
			if !state.Healthy {
				c <- prometheus.MustNewConstMetric(unhealthyDesc(), prometheus.GaugeValue, 1, part.kind, id, string(state.Cause))
			}
		}
	}
}
