package scheduler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// stateKey is what cycle is under in the cycle's state.
const stateKey framework.StateKey = Name

// cycle is what PreFilter found out about a pod. It is not changed afterwards.
type cycle struct {
	uid      types.UID
	priority int32
	amounts  []fit.Amount
	promises fit.Promises
	// member tells that the pod is in a gang; node is its place then.
	member bool
	node   string
}

// Clone is for preemption, which tries things out.
func (c *cycle) Clone() framework.StateData { return c }

// PreFilter plans for the pod's gang, unless that has been done, and takes the
// promises that Filter charges. A pod of no gang is none of its business while
// there are no promises.
func (p *Plugin) PreFilter(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
) (*framework.PreFilterResult, *framework.Status) {
	c, others, status := p.prefilter(ctx, pod, nodes)
	if len(others) > 0 {
		p.handle.Activate(p.logr, others)
	}
	if c != nil {
		state.Write(stateKey, c)
	}
	if status != nil || c == nil || c.node == "" {
		return nil, status
	}
	return &framework.PreFilterResult{NodeNames: sets.New(c.node)}, nil
}

// PreFilterExtensions are none: Filter looks at the node that it is given.
func (*Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// prefilter is PreFilter with the lock; others are pods to be tried next.
func (p *Plugin) prefilter(
	ctx context.Context, pod *corev1.Pod, nodes []framework.NodeInfo,
) (c *cycle, others map[string]*corev1.Pod, status *framework.Status) {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e == nil {
		if _, err := gang.Read(pod, b.domains); gang.Mentions(pod) && err != nil && !errors.Is(err, gang.ErrNone) {
			return nil, nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
		}
		if len(b.promises) == 0 {
			return nil, nil, framework.NewStatus(framework.Skip)
		}
		return b.cycle(pod), nil, nil
	}
	m := e.members[pod.UID]
	if why, final := p.placeFor(ctx, e, m, nodes); why != "" {
		code := framework.Unschedulable
		if final {
			code = framework.UnschedulableAndUnresolvable
		}
		return nil, nil, framework.NewStatus(code, fmt.Sprintf("rejected by podgroup %s: %s", e.key.Name, why))
	}
	if e.leader == pod.UID || e.refusal != "" {
		e.refusal, e.leader = "", ""
	}
	c = b.cycle(pod)
	c.member, c.node = true, m.node
	return c, siblings(e, b, pod.UID), nil
}

// cycle is what Filter needs to know of any pod.
func (b *book) cycle(pod *corev1.Pod) *cycle {
	return &cycle{
		uid: pod.UID, priority: priorityOf(pod), amounts: fit.Requests(pod, b.ignored...), promises: b.promises,
	}
}

// placeFor sees to it that a member has a place; else why not. Nothing that
// another pod's death could change is final.
func (p *Plugin) placeFor(ctx context.Context, e *entry, m *member, nodes []framework.NodeInfo) (why string, final bool) {
	b := p.book
	unit, missing := b.unit(e)
	switch {
	case e.fault != nil:
		return e.fault.Error(), true
	case m.stage >= planned && m.stage <= reserved:
		return "", false
	case missing != nil && !e.satisfied():
		return fmt.Sprintf("podgroup %s of its groups does not exist", missing), true
	case e.refusal != "" && e.leader != m.pod.UID && b.waits(e.leader):
		return e.refusal, true
	}
	for _, u := range unit {
		if u.fault != nil {
			return fmt.Sprintf("podgroup %s of its groups: %v", u.key.Name, u.fault), true
		}
	}
	l := planner{plugin: p, nodes: nodes}
	if why = l.unit(ctx, unit, m.pod); why == "" {
		return "", false
	}
	if anybodyLower(nodes, m.pod) {
		l.preempt = true
		if l.unit(ctx, unit, m.pod) == "" {
			return "", false
		}
	}
	for _, u := range unit {
		b.refuse(u, why, m.pod.UID)
	}
	return why, true
}

// waits tells whether a pod is there to be tried.
func (b *book) waits(uid types.UID) bool {
	e := b.of[uid]
	return e != nil && e.members[uid].waits()
}

// siblings are the members of a unit that have a plan and are not there yet,
// but for one: they are to be tried at once.
func siblings(e *entry, b *book, but types.UID) map[string]*corev1.Pod {
	unit, _ := b.unit(e)
	pods := map[string]*corev1.Pod{}
	for _, u := range unit {
		for uid, m := range u.members {
			if m.stage == planned && uid != but && !u.called {
				pods[m.pod.Namespace+"/"+m.pod.Name] = m.pod
			}
		}
		u.called = true
	}
	return pods
}
