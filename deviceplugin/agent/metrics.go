package agent

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// descs describes metrics, by name.
type descs map[string]*prometheus.Desc

// newDescs takes the name, the help text and the labels of each.
func newDescs(all [][]string) descs {
	d := descs{}
	for _, m := range all {
		d[m[0]] = prometheus.NewDesc(m[0], m[1], m[2:], nil)
	}
	return d
}

// Describe implements [prometheus.Collector].
func (d descs) Describe(all chan<- *prometheus.Desc) {
	for _, desc := range d {
		all <- desc
	}
}

// add adds a value to a scrape; counters have the suffix _total.
func (d descs) add(metrics chan<- prometheus.Metric, name string, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	metrics <- prometheus.MustNewConstMetric(d[name], kind, value, labels...)
}

// one is the value of a gauge that reports whether something is so.
func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// The metrics that name no pod.
const (
	unavailable   = "heddle_unavailable"
	bindings      = "heddle_bindings"
	modePending   = "heddle_gpu_mode_pending"
	cordoned      = "heddle_gpu_cordoned"
	dirty         = "heddle_gpu_dirty"
	rejectedPods  = "heddle_rejected_pods"
	mpsRunning    = "heddle_mps_daemon_running"
	mpsRestarts   = "heddle_mps_daemon_restarts_total"
	usageMeasured = "heddle_share_usage_measured"
)

func nodeMetrics() descs {
	return newDescs([][]string{
		{
			unavailable, "Devices of a resource that no pod can get, by reason; 1 for a resource without devices.",
			"resource", "reason",
		},
		{bindings, "Containers that have devices of a resource.", "resource"},
		{modePending, "1 for every GPU that is allocated in another mode than the configuration wants, by UUID.", "gpu"},
		{cordoned, "1 for every GPU that an operator cordoned, by UUID.", "gpu"},
		{
			dirty, "1 for every GPU, by UUID, that its next pod waits for, since a process or memory is still on it.", "gpu",
		},
		{
			rejectedPods, "Pods that wait for a share of a GPU, a clean GPU, HCAs or IMEX channels, by kind of reason.",
			"kind",
		},
		{
			mpsRunning, "1 for a shared GPU, by UUID, if its MPS daemon answers and has its limits, 0 if it should and does " +
				"not.", "gpu",
		},
		{
			mpsRestarts, "Failures of the MPS daemon of a shared GPU since the GPU has consumers with MPS.", "gpu",
		},
		{
			usageMeasured, "Whether the node looks at what containers use of its shared GPUs; 0 if it cannot, absent if it " +
				"shares none.",
		},
	})
}

// Collect implements [prometheus.Collector] with the metrics that name no pod. A scrape sees one round.
func (a *Agent) Collect(metrics chan<- prometheus.Metric) {
	r := a.last.Load()
	for _, short := range publish.Shortages(r) {
		a.add(metrics, unavailable, float64(max(short.Count, 1)), short.Resource, string(short.Cause))
	}
	counts := map[string]map[string]int{bindings: {}, rejectedPods: {}}
	for name := range r.Served {
		counts[bindings][name] = 0
	}
	for _, b := range a.state.View().Allocations() {
		for name := range b.CDINames {
			counts[bindings][name]++
		}
	}
	for _, rejected := range a.state.Rejections() {
		counts[rejectedPods][rejected.Kind]++
	}
	for metric, by := range counts {
		for label, n := range by {
			a.add(metrics, metric, float64(n), label)
		}
	}
	for _, g := range a.modes.GPUs() {
		if g.Until != "" {
			a.add(metrics, modePending, 1, g.UUID)
		}
		if g.Cordoned {
			a.add(metrics, cordoned, 1, g.UUID)
		}
	}
	for uuid := range a.state.Dirty(0) {
		a.add(metrics, dirty, 1, uuid)
	}
	for _, d := range daemons(a.Limiter) {
		a.add(metrics, mpsRunning, one(d.State == enforce.Running), d.GPU)
		a.add(metrics, mpsRestarts, float64(d.Restarts), d.GPU)
	}
	if r.Sharing {
		a.add(metrics, usageMeasured, one(a.meter.unmeasured() == ""))
	}
}
