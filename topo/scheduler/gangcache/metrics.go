package gangcache

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of the scheduler plugin. They are not collected before Register.
type Metrics struct {
	registry             *prometheus.Registry
	duration             prometheus.Histogram
	rejections, timeouts prometheus.Counter
	placed               *prometheus.CounterVec
	// IgnoredAnnotations counts annotations of shares by key.
	IgnoredAnnotations *prometheus.CounterVec
	// Plans is labeled by result.
	Plans *prometheus.HistogramVec
	// Gauges are vectors, since a vector without a value is absent: a waiting replica has no gauges
	// of gangs and GPUs.
	Gangs, Rejected, Held, TreeAge, TreeFresh, FreeGPUs, WholeGPUs, LargestGang *prometheus.GaugeVec
}

// NewMetrics returns metrics without values.
func NewMetrics() *Metrics {
	registry := prometheus.NewRegistry()
	with := promauto.With(prometheus.WrapRegistererWithPrefix("heddle_scheduler_", registry))
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return with.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		registry: registry,
		duration: with.NewHistogram(prometheus.HistogramOpts{
			Name:    "gang_duration_seconds",
			Help:    "Time from the last pod that a gang needs until that many of its pods have a node.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 10),
		}),
		Plans: with.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gang_plan_duration_seconds",
			Help: "Time of one plan for a gang and those that it runs with, by result: placed, rejected, " +
				"or preempting for one search for gangs to evict.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"result"}),
		placed: with.NewCounterVec(prometheus.CounterOpts{
			Name: "gangs_placed_total",
			Help: "Gangs that started, by the kind of the lowest group that holds them: " +
				"node, a kind of the topology tree, or none.",
		}, []string{"kind"}),
		rejections: with.NewCounter(prometheus.CounterOpts{
			Name: "gang_rejections_total",
			Help: "Rejections of gangs that were not rejected before or had a plan since.",
		}),
		timeouts: with.NewCounter(prometheus.CounterOpts{
			Name: "gang_timeouts_total",
			Help: "Timeouts after which members released their nodes.",
		}),
		IgnoredAnnotations: with.NewCounterVec(prometheus.CounterOpts{
			Name: "share_annotations_ignored_total",
			Help: "Annotations of pods that give other shares than the pod's limits, by key.",
		}, []string{"annotation"}),
		Gangs: gauge("gangs", "Gangs of this scheduler's pods, by state.", "state"),
		Rejected: gauge("gang_rejected_seconds",
			"Time for which a complete gang has been rejected; the ten longest.", "namespace", "podgroup"),
		Held: gauge("gang_reserved_nodes",
			"Nodes reserved for a gang that has waited for the argument reserveAfter.", "namespace", "podgroup"),
		TreeAge: gauge("map_age_seconds", "Time since topo-master confirmed the topology tree."),
		TreeFresh: gauge("map_fresh",
			"1 if gangs are placed by the topology tree, 0 if it is too old or missing; absent if none is configured."),
		FreeGPUs:  gauge("gpus_free", "GPUs that no pod has or has reserved, on nodes that take pods."),
		WholeGPUs: gauge("gpus_free_whole", "GPUs of gpus_free on nodes with all GPUs free."),
		LargestGang: gauge("largest_gang_gpus",
			"GPUs of the largest gang of whole nodes that one group of a kind has room for.", "kind"),
	}
}

// Register adds the metrics to a registry.
func (m *Metrics) Register(r prometheus.Registerer) error { return r.Register(m.registry) }
