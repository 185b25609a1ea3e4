package plugin

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// surveyEvery is how old a survey is at least before the next one. It is made in
// a scheduling cycle, whose nodes nobody changes meanwhile.
const surveyEvery = 10 * time.Second

// room is what of the GPUs is free.
type room struct {
	at time.Time
	// free are all, whole those on nodes that are free altogether; largest is
	// the most of the latter in one group, by kind.
	free, whole int64
	largest     map[string]int
}

// lately is the last survey.
func (p *Plugin) lately() room {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room
}

// survey looks at what is free, if somebody wants to know and the last look is
// old enough.
func (p *Plugin) survey(ctx context.Context, nodes []framework.NodeInfo) {
	if p.registry == nil {
		return
	}
	now := time.Now()
	if last := p.lately(); now.Sub(last.at) < surveyEvery {
		return
	}
	b, c := p.book, &p.chart
	b.mu.Lock()
	promises := b.promises
	m, _ := p.source.Current()
	c.update(ctx, m, p.source.Fresh(m, b.now()), nodes, p.log)
	b.mu.Unlock()
	r := room{at: now, largest: map[string]int{}}
	gpu := corev1.ResourceName(b.domains.GPUResource())
	whole := make([]int32, c.tree.Len())
	for i, info := range nodes {
		if info.Node().Spec.Unschedulable || !c.usable(c.ids[i]) {
			continue
		}
		has := info.GetAllocatable().GetScalarResources()[gpu]
		free := has - info.GetRequested().GetScalarResources()[gpu] - promised(promises[info.Node().Name], gpu)
		if free <= 0 {
			continue
		}
		r.free += free
		if free == has {
			r.whole += free
			whole[c.ids[i]] = int32(min(free, 1<<20))
		}
	}
	for _, d := range c.tree.LargestFree(whole) {
		r.largest[d.Kind] = d.Pods
	}
	p.mu.Lock()
	p.room = r
	p.mu.Unlock()
}

// promised is how much of a resource was promised.
func promised(promises []fit.Promise, resource corev1.ResourceName) (sum int64) {
	for i := range promises {
		for _, a := range promises[i].Amounts {
			if a.Resource == resource {
				sum += a.Value
			}
		}
	}
	return sum
}
