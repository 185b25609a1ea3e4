package plugin

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// plan plans gangs beside all reservations: with pods of a lower priority gone if it
// may, and there is no room else. leaving are those that must leave first. It is for one
// goroutine: that of the scheduling cycles.
func (p *Plugin) plan(
	r *planner.Request, mayPreempt bool,
) (found []planner.Plan, leaving []*corev1.Pod, reason string) {
	begin, result := time.Now(), "placed"
	r.Reservations = p.cache.Beside(r.Gangs)
	if found, reason = p.planner.Plan(r); reason != "" {
		result = "refused"
	}
	p.cache.Metrics.Plans.WithLabelValues(result).Observe(time.Since(begin).Seconds())
	if reason != "" && mayPreempt {
		found, leaving = p.preemptor.Plan(r)
	}
	if found == nil && mayPreempt {
		advance := p.planner.Advance(r, time.Now())
		p.cache.Reserve(r.Gangs, advance)
		if !advance.Start.IsZero() {
			reason = fmt.Sprintf("room is reserved from %s: %s", advance.Start.UTC().Format(time.RFC3339), reason)
		}
	}
	return found, leaving, reason
}

// capacityEvery is the age from which on the free capacity is taken again.
const capacityEvery = 10 * time.Second

// measure sets the metrics of the free capacity, unless they are of now.
func (p *Plugin) measure(nodes []framework.NodeInfo) {
	if time.Since(p.measured) < capacityEvery {
		return
	}
	p.measured = time.Now()
	free, m := p.planner.Capacity(nodes, p.cache.Reservations()), p.cache.Metrics
	m.FreeGPUs.WithLabelValues().Set(float64(free.Free))
	m.WholeGPUs.WithLabelValues().Set(float64(free.Whole))
	m.LargestGang.Reset()
	for kind, gpus := range free.Largest {
		m.LargestGang.WithLabelValues(kind).Set(float64(gpus))
	}
}
