package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	publishTimeout = 10 * time.Second
	publishRetry   = 15 * time.Second
	// publishAgain is the time for which the Node is trusted to keep the written conditions.
	publishAgain = 5 * time.Minute
	// releaseRetry is the time between two answers to a request for a release until
	// the GPUs are released: an operator waits for that.
	releaseRetry = 500 * time.Millisecond
)

// Options configures a Publisher.
type Options struct {
	API          *apiserver.Client
	State        *devicestate.State
	PodResources podresources.PodResourcesListerClient
	Processes    cgroup.Proc
	// Session is with the driver of the GPUs; nil for a replayed machine.
	Session *host.Release
	Log     *slog.Logger
}

// Publisher keeps the Node's conditions, annotations and taint as [Desired] has them,
// apart from the agent's loop: a slow API server must not hold back the health of a
// device.
type Publisher struct {
	Options
	changed notify.Signal
	last    atomic.Pointer[Round]

	// What follows is Run's alone: the conditions that were written, by type, and the
	// notices of the last round.
	written map[string]writtenCondition
	notices map[string]health.NodeEvent

	evictor               *apiserver.Evictor
	active                prometheus.Gauge
	evicted               prometheus.Counter
	unavailable, bindings *prometheus.Desc
}

type writtenCondition struct {
	health.Condition
	at time.Time
}

// New makes a Publisher of the node before its first round.
func New(o Options, before *Round) *Publisher {
	p := &Publisher{
		Options: o, changed: notify.New(), written: map[string]writtenCondition{},
		evictor: apiserver.NewEvictor(o.API),
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_remediation_active",
			Help: "1 while health.remediation has the Node cordoned because a GPU stays unhealthy.",
		}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_remediation_evicted_pods_total",
			Help: "Pods that health.remediation evicted because their GPU stays unhealthy.",
		}),
		unavailable: prometheus.NewDesc("heddle_unavailable",
			"Devices of a resource that no pod can get, by reason; 1 for a resource without any device.",
			[]string{"resource", "reason"}, nil),
		bindings: prometheus.NewDesc("heddle_bindings",
			"Containers that have devices of a resource.", []string{"resource"}, nil),
	}
	p.last.Store(before)
	return p
}

// Update takes a round.
func (p *Publisher) Update(r *Round) {
	p.last.Store(r)
	p.changed.Notify()
}

// Run publishes after every round until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	if !p.API.Online() {
		return nil
	}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-retry:
		}
		retry = nil
		switch releasing, err := p.publish(ctx); {
		case err != nil && ctx.Err() == nil:
			p.Log.WarnContext(ctx, "publishing devices failed", "err", err, "retry_in", publishRetry)
			retry = time.After(publishRetry)
		case releasing:
			retry = time.After(releaseRetry)
		}
	}
}

// publish writes what differs. releasing reports that a release has not come to its
// end yet.
func (p *Publisher) publish(ctx context.Context) (releasing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	r := *p.last.Load()
	err = p.ask(ctx, &r)
	status := r.Usage.Release
	return status != nil && !status.Released, errors.Join(err, p.apply(ctx, Desired(&r)))
}

// ask finds out who uses the devices of a round.
func (p *Publisher) ask(ctx context.Context, r *Round) error {
	u := &r.Usage
	u.At, u.Holders = time.Now(), map[string]map[string]bool{}
	u.Tainted, u.NodeKnown = p.API.Tainted(wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule)
	u.Pods, _, _ = p.API.Pods()
	var errs []error
	for _, name := range r.gpuResources() {
		held, err := p.State.Holders(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("holders of GPUs: %w", err))
			continue
		}
		u.Holders[name] = held
	}
	released := !r.Release.Until.IsZero()
	if released || r.Inventory.Config.Health.Remediation.Policy == config.RemediationDrain {
		u.Containers = p.containers(ctx)
	}
	if released {
		u.Release = p.releaseStatus(ctx, r)
	}
	return errors.Join(errs...)
}

// containers lists the containers that hold GPUs. A pod that has ended keeps its checkpoint entry
// for a while.
func (p *Publisher) containers(ctx context.Context) []report.Binding {
	held, err := p.State.Held(ctx)
	return slices.DeleteFunc(p.State.View().Allocations(), func(b report.Binding) bool {
		holds := func(h devicestate.Held) bool { return h.Pod == b.Namespace+"/"+b.Pod }
		return err == nil && !slices.ContainsFunc(held, holds)
	})
}

// apply writes what the Node does not show yet.
func (p *Publisher) apply(ctx context.Context, s *Status) error {
	for name, notice := range s.Notices {
		if _, before := p.notices[name]; !before {
			p.API.Record(notice)
		}
	}
	p.notices = s.Notices
	var errs []error
	for _, c := range s.Conditions {
		errs = append(errs, p.setCondition(ctx, c))
	}
	errs = append(errs, p.API.ShowAnnotations(ctx, s.Annotations))
	if s.Remedy != nil {
		errs = append(errs, p.remedy(ctx, s.Remedy))
	}
	return errors.Join(errs...)
}

func (p *Publisher) setCondition(ctx context.Context, c health.Condition) error {
	if old := p.written[c.Type]; c == old.Condition && time.Since(old.at) < publishAgain {
		return nil
	}
	if err := p.API.SetCondition(ctx, c); err != nil {
		return err
	}
	p.written[c.Type] = writtenCondition{c, time.Now()}
	return nil
}

// remedy changes the taint, evicts pods as far as their budgets and the rate allow, and
// shows both in a condition.
func (p *Publisher) remedy(ctx context.Context, r *Remedy) error {
	if r.Notice != nil {
		if err := p.API.SetTaint(ctx, wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule, r.Taint); err != nil {
			return err
		}
		p.Log.InfoContext(ctx, "remediation", "cordoned", r.Taint, "reason", r.Notice.Message)
		p.API.Record(*r.Notice)
	}
	p.active.Set(0)
	if r.Taint {
		p.active.Set(1)
	}
	for _, pod := range r.Evict {
		if p.evictor.Evict(ctx, apiserver.Ref(pod), wellknown.EventUnhealthyGPUEvicted, r.Reason) {
			p.evicted.Inc()
		}
	}
	return p.setCondition(ctx, r.Condition)
}

// Describe implements [prometheus.Collector].
func (p *Publisher) Describe(descs chan<- *prometheus.Desc) {
	p.active.Describe(descs)
	p.evicted.Describe(descs)
	descs <- p.unavailable
	descs <- p.bindings
}

// Collect implements [prometheus.Collector]. A scrape sees all shortages of one round.
func (p *Publisher) Collect(metrics chan<- prometheus.Metric) {
	p.active.Collect(metrics)
	p.evicted.Collect(metrics)
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	r := p.last.Load()
	for _, one := range Shortages(r) {
		gauge(p.unavailable, max(one.Count, 1), one.Resource, string(one.Cause))
	}
	containers := map[string]int{}
	for name := range r.Served {
		containers[name] = 0
	}
	for _, a := range p.State.View().Allocations() {
		for name := range a.CDINames {
			containers[name]++
		}
	}
	for name, n := range containers {
		gauge(p.bindings, n, name)
	}
}
