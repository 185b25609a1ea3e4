package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
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
	// shares are what the pod asks for of shared cards; nil if nothing.
	shares *sgpu.Want
	// chosen are the whole GPUs that it accepts; nil if any.
	chosen *sgpu.Chosen
}

// Clone is for preemption, which tries things out.
func (c *cycle) Clone() framework.StateData { return c }

// PreFilter plans for the pod's gang, unless that has been done, and takes the
// promises that Filter charges. A pod of no gang that shares no card is none of
// its business while there are no promises.
func (p *Plugin) PreFilter(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
) (*framework.PreFilterResult, *framework.Status) {
	p.led.Store(true)
	shares, err := p.sharesOf(pod)
	chosen, wrong := p.chosenBy(pod)
	if err = cmp.Or(err, wrong); err != nil {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
	}
	if p.isNative(pod) {
		return p.prefilterNative(ctx, state, pod, nodes, shares, chosen)
	}
	if state.IsPodGroupSchedulingCycle() && p.inGang(pod) {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, errNotNative.Error())
	}
	c, next, status := p.prefilter(ctx, pod, nodes, shares != nil || chosen != nil)
	p.reject(next.waiting, next.why)
	if len(next.try) > 0 {
		p.handle.Activate(p.logr, next.try)
	}
	if c != nil {
		c.shares, c.chosen = shares, chosen
		state.Write(stateKey, c)
	}
	if status != nil || c == nil || c.node == "" {
		return nil, status
	}
	return &framework.PreFilterResult{NodeNames: sets.New(c.node)}, nil
}

// PreFilterExtensions are none: Filter looks at the node that it is given.
func (*Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// next is what else is to be done, without the lock.
type next struct {
	// try are pods to be tried at once.
	try map[string]*corev1.Pod
	// waiting are to be rejected, and why.
	waiting []types.UID
	why     string
}

// prefilter is PreFilter with the lock.
func (p *Plugin) prefilter(
	ctx context.Context, pod *corev1.Pod, nodes []framework.NodeInfo, particular bool,
) (c *cycle, then next, status *framework.Status) {
	p.survey(ctx, nodes)
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e == nil {
		if _, err := gang.Read(pod, b.domains); gang.Mentions(pod) && err != nil && !errors.Is(err, gang.ErrNoGang) {
			return nil, next{}, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
		}
		if len(b.promises) == 0 && !particular {
			return nil, next{}, framework.NewStatus(framework.Skip)
		}
		return b.cycle(pod), next{}, nil
	}
	m := e.members[pod.UID]
	if why, waiting := p.placeFor(ctx, e, m, nodes); why != "" {
		// Final: nobody's death would make room for the whole gang.
		return nil, next{try: siblings(e, b, pod.UID), waiting: waiting, why: why}, framework.NewStatus(
			framework.UnschedulableAndUnresolvable, fmt.Sprintf("rejected by podgroup %s: %s", e.key.Name, why))
	}
	if e.leader == pod.UID || e.refusal != "" {
		e.refusal, e.leader = "", ""
	}
	c = b.cycle(pod)
	c.member, c.node = true, m.node
	return c, next{try: siblings(e, b, pod.UID)}, nil
}

// cycle is what Filter needs to know of any pod.
func (b *book) cycle(pod *corev1.Pod) *cycle {
	return &cycle{
		uid: pod.UID, priority: priorityOf(pod), amounts: fit.Requests(pod, b.ignored...), promises: b.promises,
	}
}

// placeFor sees to it that a member has a place; else why not, and which members
// give theirs back.
func (p *Plugin) placeFor(
	ctx context.Context, e *entry, m *member, nodes []framework.NodeInfo,
) (why string, waiting []types.UID) {
	b := p.book
	unit, missing := b.unit(e)
	switch {
	case e.fault != nil:
		b.refused(e, e.fault.Error())
		return e.fault.Error(), nil
	case m.stage >= planned && m.stage <= reserved:
		return "", nil
	case missing != nil && !e.satisfied():
		return fmt.Sprintf("podgroup %s of its groups does not exist", missing), nil
	case e.refusal != "" && e.leader != m.pod.UID && b.waits(e.leader):
		m.told = true
		return e.refusal, nil
	}
	for _, u := range unit {
		if u.fault != nil {
			return fmt.Sprintf("podgroup %s of its groups: %v", u.key.Name, u.fault), nil
		}
	}
	l := planner{plugin: p, nodes: nodes}
	l.finish(ctx, e, priorityOf(m.pod))
	if why = l.unit(ctx, unit, m.pod); why == "" {
		return e.beyond(m), nil
	}
	if anybodyLower(nodes, m.pod) {
		l.preempt = true
		if l.unit(ctx, unit, m.pod) == "" {
			return e.beyond(m), nil
		}
	}
	if e.stands() {
		// There is no room for one more, and the others are on their way.
		m.told = true
		return why, nil
	}
	if !e.satisfied() {
		waiting = b.release(unit, why)
	}
	b.refuse(e, why, m.pod.UID)
	return why, waiting
}

// beyond is what a member is told that has no place in the plan made for its
// gang: those of lower ranks have. Nobody waits for it.
func (e *entry) beyond(m *member) string {
	if m.stage != pending {
		return ""
	}
	m.told = true
	e.refusal, e.leader = "", ""
	return "others of the gang come before this pod, and there is no room for more"
}

// stands tells that as many members as the gang needs were promised a place,
// which not all of them have taken yet.
func (e *entry) stands() bool {
	return !e.deadline.IsZero() && e.gang.MinMember > 0 && e.count(planned) >= e.gang.MinMember && !e.satisfied()
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
