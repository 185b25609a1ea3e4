package plugin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

const (
	// A gang avoids a node that turned a member away for what no plan sees
	// (volumes, other pods' affinity), at first for a moment, since the node may
	// just be changing, and twice as long each time.
	avoidFirst, avoidMost = 2 * time.Second, time.Minute
	// maxRetries is how often a gang plans around such nodes before it lets go
	// of all that it holds.
	maxRetries = 3
)

// PostFilter runs before the scheduler's preemption. It lets that have victims
// for a member of a gang only where a plan says that the whole gang fits once
// they are gone.
func (p *Plugin) PostFilter(
	_ context.Context, state framework.CycleState, pod *corev1.Pod, statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	goOn, stop := framework.NewStatus(framework.Unschedulable), framework.NewStatus(framework.UnschedulableAndUnresolvable)
	c := read(state)
	switch {
	case c == nil && p.inGang(pod):
		return nil, stop
	case c == nil:
		return nil, goOn
	case !c.member:
		p.mu.Lock()
		p.blocked[pod.UID] = true
		p.mu.Unlock()
		return nil, goOn
	}
	away := p.turnedAway(pod, c.node, statuses.Get(c.node))
	if away.preempt {
		return nil, goOn
	}
	p.reject(away.waiting, away.why)
	if away.again {
		p.handle.Activate(p.logr, map[string]*corev1.Pod{pod.Namespace + "/" + pod.Name: pod})
	}
	return nil, stop
}

func (p *Plugin) inGang(pod *corev1.Pod) bool {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	return p.book.of[pod.UID] != nil
}

// away is what becomes of a gang whose member was turned away.
type away struct {
	// preempt lets the scheduler's preemption go on.
	preempt bool
	// again tells to try the member at once.
	again bool
	// waiting are to be rejected, and why.
	waiting []types.UID
	why     string
}

// turnedAway is called when a member's own place is none after all. Others may
// have to leave it first, as planned. Else the gang avoids the node and plans
// again, with the members that hold one where they are; after some tries it
// lets go of all.
func (p *Plugin) turnedAway(pod *corev1.Pod, node string, status *framework.Status) away {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e == nil || e.members[pod.UID].stage != planned {
		return away{}
	}
	if e.preempting && status.Code() == framework.Unschedulable {
		return away{preempt: true}
	}
	e.avoid[node] = b.now().Add(min(avoidFirst<<min(e.turns, 10), avoidMost))
	e.turns++
	e.retries++
	if e.retries > maxRetries {
		e.retries = 0
		unit, _ := b.unit(e)
		why := fmt.Sprintf("member %s has no place: node %s: %s", pod.Name, node, status.Message())
		return away{waiting: b.release(unit, why), why: why}
	}
	for _, m := range e.members {
		if m.stage == planned {
			m.stage, m.node = pending, ""
		}
	}
	b.promise()
	return away{again: true}
}
