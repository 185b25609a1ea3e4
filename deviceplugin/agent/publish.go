package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	publishTimeout = 10 * time.Second
	publishRetry   = 15 * time.Second
	// publishAgain is how long the Node is trusted to have what was written.
	publishAgain = 5 * time.Minute
)

// publisher writes the Node's conditions and annotations, apart from the loop: an
// API server that is slow must not hold back the health of a device.
type publisher struct {
	*core
	resources *resources
	changed   notify.Signal

	// found is what the last round found.
	found atomic.Pointer[found]

	// What follows is run's alone: what was written last, and when.
	conditions     map[string]writtenCondition // by type
	topology, free string
	annotatedAt    time.Time
	hcas           string
	countedAt      time.Time
	// empty are the resources without any device, by name.
	empty map[string]bool

	remediation *remediation
}

type found struct {
	health    *health.Snapshot
	shortages []health.Shortage
	gpus      []gpumode.GPU
	release   release.Request
}

type writtenCondition struct {
	health.Condition
	at time.Time
}

func newPublisher(c *core, r *resources) *publisher {
	p := &publisher{
		core: c, resources: r, changed: notify.New(), conditions: map[string]writtenCondition{}, empty: map[string]bool{},
		remediation: newRemediation(),
	}
	p.found.Store(&found{health: &health.Snapshot{}})
	return p
}

// update takes what a round found.
func (p *publisher) update(snapshot *health.Snapshot, gpus []gpumode.GPU, lasting release.Request) {
	p.found.Store(&found{snapshot, p.resources.shortages(p.now.Load(), snapshot, gpus), gpus, lasting})
	p.changed.Notify()
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) error {
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
		switch again, err := p.publish(ctx); {
		case err != nil && ctx.Err() == nil:
			p.Log.WarnContext(ctx, "publishing devices failed", "err", err, "retry_in", publishRetry)
			retry = time.After(publishRetry)
		case again:
			retry = time.After(releaseRetry)
		}
	}
}

// publish writes what differs from the last time. again reports that this should
// be soon again.
func (p *publisher) publish(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	now := p.found.Load()
	p.announce(now.shortages)
	again, err = p.publishRelease(ctx, now.release)
	return again, errors.Join(
		err,
		p.publishCondition(ctx, health.ConditionOf(now.shortages)),
		p.publishCondition(ctx, modeCondition(modeStates(now.gpus))),
		p.publishGPUs(ctx),
		p.publishHCAs(ctx),
		p.remedy(ctx, now, time.Now()),
	)
}

func (p *publisher) publishCondition(ctx context.Context, c health.Condition) error {
	if old := p.conditions[c.Type]; c == old.Condition && time.Since(old.at) < publishAgain {
		return nil
	}
	if err := p.API.SetCondition(ctx, c); err != nil {
		return err
	}
	p.conditions[c.Type] = writtenCondition{c, time.Now()}
	return nil
}

// The reasons of [wellknown.ConditionModes].
const (
	reasonPending    = "ModePending"
	reasonConfigured = "AsConfigured"
)

// modeCondition names the GPUs that are handed out in another mode than the
// configuration wants, and what they wait for.
func modeCondition(gpus []report.GPU) health.Condition {
	var parts []string
	for i := range gpus {
		if text := gpus[i].Pending(); text != "" {
			parts = append(parts, text)
		}
	}
	c := health.Condition{
		Type: wellknown.ConditionModes, Reason: reasonConfigured, Message: "every GPU is handed out as configured",
		Optional: true,
	}
	if len(parts) > 0 {
		c.True, c.Reason, c.Message = true, reasonPending, health.Cut(strings.Join(parts, "; "))
	}
	return c
}

// publishGPUs writes for schedulers which whole GPUs are free, and how well they
// go together.
func (p *publisher) publishGPUs(ctx context.Context) error {
	name, served := p.config().Resources.GPU, p.resources.all()
	whole := served[name]
	if whole == nil || whole.gpu == nil {
		return nil
	}
	held, err := p.state.Holders(ctx, name)
	if err != nil {
		return fmt.Errorf("holders of GPUs: %w", err)
	}
	all := whole.gpu.Free(held)
	for _, g := range p.machine().GPUs {
		other := served[p.config().GPUResource(&g)]
		if other == nil || other == whole || other.gpu == nil || all.Others[other.gpu.Name].Free != nil {
			continue
		}
		held, err := p.state.Holders(ctx, other.gpu.Name)
		if err != nil {
			return fmt.Errorf("holders of GPUs: %w", err)
		}
		if all.Others == nil {
			all.Others, all.Resource = map[string]allocation.FreeGPUs{}, name
		}
		all.Others[other.gpu.Name] = *other.gpu.Free(held)
	}
	topology, free := whole.gpu.Annotation(held), all.String()
	if topology == p.topology && free == p.free && time.Since(p.annotatedAt) < publishAgain {
		return nil
	}
	if err := p.API.AnnotateNode(ctx, "", map[string]*string{
		wellknown.GPUTopology: valueOrNone(topology), wellknown.FreeGPUs: valueOrNone(free),
	}); err != nil {
		return err
	}
	p.topology, p.free, p.annotatedAt = topology, free, time.Now()
	return nil
}

// publishHCAs writes for schedulers how many HCAs one container can have. Capacity
// cannot show that: it has a place for each container that shares an HCA.
func (p *publisher) publishHCAs(ctx context.Context) error {
	text := hcaCounts(p.now.Load())
	if text == p.hcas && time.Since(p.countedAt) < publishAgain {
		return nil
	}
	if err := p.API.AnnotateNode(ctx, "", map[string]*string{wellknown.HCACounts: valueOrNone(text)}); err != nil {
		return err
	}
	p.hcas, p.countedAt = text, time.Now()
	return nil
}

// hcaCounts is that annotation, empty for a node without such resources. With count
// distinct an unhealthy HCA counts, as a container starts with those that are left;
// with strict it does not. With all a pod's number is no number of HCAs.
func hcaCounts(inv *inventory.Inventory) string {
	c, m := inv.Config, inv.Config.WithRoles(inv.Machine)
	counts := allocation.HCACounts{Version: allocation.Version, HCAs: map[string]int{}}
	for i := range c.RDMA.Resources {
		r := &c.RDMA.Resources[i]
		if r.Count == config.CountAll {
			continue
		}
		members := allocate.Members(inv, m, r)
		if r.Count == config.CountStrict {
			members = slices.DeleteFunc(members, func(h allocate.Member) bool { return h.Unhealthy != "" })
		}
		counts.HCAs[r.Name] = len(members)
	}
	if len(counts.HCAs) == 0 {
		return ""
	}
	return counts.String()
}

// valueOrNone is an annotation's value; an empty one takes the annotation away.
func valueOrNone(value string) *string {
	if value == "" {
		return nil
	}
	return &value
}

// announce makes Events of resources that have become, or are no longer,
// without any device. Health has Events of its own about single devices.
func (p *publisher) announce(short []health.Shortage) {
	now := map[string]bool{}
	for _, s := range short {
		if s.Cause != NothingToOffer {
			continue
		}
		if now[s.Resource] = true; !p.empty[s.Resource] {
			p.API.Record(health.NodeEvent{
				Warning: true, Reason: string(NothingToOffer), Message: s.Resource + ": " + s.Message,
			})
		}
	}
	p.empty = now
}

func publishedDescs() (unavailable, allocated *prometheus.Desc) {
	unavailable = prometheus.NewDesc("heddle_unavailable",
		"Devices of a resource that no pod can get, by reason; 1 for a resource without any device.",
		[]string{"resource", "reason"}, nil)
	allocated = prometheus.NewDesc("heddle_bindings",
		"Containers that have devices of a resource.", []string{"resource"}, nil)
	return unavailable, allocated
}

// Describe implements [prometheus.Collector].
func (p *publisher) Describe(descs chan<- *prometheus.Desc) {
	unavailable, allocated := publishedDescs()
	descs <- unavailable
	descs <- allocated
	p.remediation.active.Describe(descs)
	p.remediation.evicted.Describe(descs)
}

// Collect implements [prometheus.Collector]. A scrape sees all shortages of one
// round.
func (p *publisher) Collect(metrics chan<- prometheus.Metric) {
	unavailable, allocated := publishedDescs()
	p.remediation.active.Collect(metrics)
	p.remediation.evicted.Collect(metrics)
	for _, one := range p.found.Load().shortages {
		metrics <- prometheus.MustNewConstMetric(unavailable, prometheus.GaugeValue,
			float64(max(one.Count, 1)), one.Resource, string(one.Cause))
	}
	containers := map[string]int{}
	for name := range p.resources.all() {
		containers[name] = 0
	}
	for _, a := range p.state.View().Allocations() {
		for name := range a.CDINames {
			containers[name]++
		}
	}
	for name, n := range containers {
		metrics <- prometheus.MustNewConstMetric(allocated, prometheus.GaugeValue, float64(n), name)
	}
}
