package plugin

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meters count what happens to gangs. What is at one moment, gauges tell.
type meters struct {
	// duration is from the last pod that a gang needs until its members have
	// their nodes; plans is how long one plan takes.
	duration prometheus.Histogram
	plans    *prometheus.HistogramVec
	// reached counts gangs by the kind of the lowest group that holds them.
	reached           *prometheus.CounterVec
	refusals, expired prometheus.Counter
}

// noKind is the kind of what is held by no group of the map.
const noKind = "none"

func newMeters() *meters {
	options := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "heddle", Subsystem: "scheduler", Name: name, Help: help}
	}
	histogram := func(name, help string, first float64, factor float64, buckets int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: "heddle", Subsystem: "scheduler", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, factor, buckets),
		}
	}
	return &meters{
		duration: prometheus.NewHistogram(histogram("gang_duration_seconds",
			"Time from the last pod that a gang needs until that many of its pods have a node.", 0.01, 4, 10)),
		plans: prometheus.NewHistogramVec(histogram("gang_plan_duration_seconds",
			"Time of one plan for a gang and those that it runs with, by result: placed or refused.", 0.0001, 4, 9),
			[]string{"result"}),
		reached: prometheus.NewCounterVec(prometheus.CounterOpts(options("gangs_placed_total",
			"Gangs that started, by the kind of the lowest group that holds them: node, a kind of the map, or none.")),
			[]string{"kind"}),
		refusals: prometheus.NewCounter(prometheus.CounterOpts(options("gang_refusals_total",
			"Times that a gang was refused which had not been refused before, or had had a plan since."))),
		expired: prometheus.NewCounter(prometheus.CounterOpts(options("gang_timeouts_total",
			"Times that members gave their nodes back, because the others did not come in time."))),
	}
}

// register shows the metrics, if somebody wants them.
func (p *Plugin) register(ctx context.Context) {
	if p.registry == nil {
		return
	}
	m := p.meters
	for _, c := range []prometheus.Collector{m.duration, m.plans, m.reached, m.refusals, m.expired, newGauges(p)} {
		if err := p.registry.Register(c); err != nil {
			p.log.ErrorContext(ctx, "no metrics: only one profile may have the plugin", "err", err)
			return
		}
	}
}

// planned notes a plan.
func (m *meters) planned(took time.Duration, why string) {
	result := "placed"
	if why != "" {
		result = "refused"
	}
	m.plans.WithLabelValues(result).Observe(took.Seconds())
}

// refused notes that a gang is refused.
func (b *book) refused(e *entry, why string) {
	if why == "" {
		return
	}
	if e.rejected.IsZero() {
		e.rejected = b.now()
	}
	if e.refusal == "" {
		b.meters.refusals.Inc()
	}
}

// completed notes when a gang that never ran has the pods that it needs.
func (e *entry) completed(ok bool, now time.Time) {
	switch {
	case !ok, e.once:
		e.complete = time.Time{}
	case e.complete.IsZero():
		e.complete = now
	}
}

// placed notes that a gang starts.
func (b *book) placed(e *entry) {
	e.rejected = time.Time{}
	if !e.once {
		b.meters.reached.WithLabelValues(cmp.Or(e.reached, noKind)).Inc()
	}
}

// started notes that a gang has the nodes that it needs, if it has.
func (b *book) started(e *entry) {
	if e.complete.IsZero() {
		return
	}
	n := 0
	for _, m := range e.members {
		if m.stage >= bound {
			n++
		}
	}
	if n >= e.gang.MinMember {
		b.meters.duration.Observe(b.now().Sub(e.complete).Seconds())
		e.complete = time.Time{}
	}
}
