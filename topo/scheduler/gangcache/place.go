package gangcache

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Plan plans gangs together, with pods of a lower priority gone if it may and must:
// those that leave. The reason is why there is no plan, or none without preemption.
type Plan func(gangs []planner.Gang, mayPreempt bool) (plans []planner.Plan, leaving []*corev1.Pod, reason string)

// attempt is what PreFilter of a member comes to before anything is planned: its node or
// rejection, or the gangs to plan, of which the first is the member's.
type attempt struct {
	node, rejection string
	// notMember is for a pod of no gang.
	notMember bool
	gangs     []planner.Gang
	// interrupted are those to plan before, each with the gangs that it runs with.
	interrupted [][]planner.Gang
}

// Place is for PreFilter: the node of a member, by an earlier plan or by one that is
// made now, without the lock, for all gangs that it runs with; or why it has none.
func (c *Cache) Place(pod *corev1.Pod, plan Plan) (node string, member bool, rejection string) {
	for range 3 {
		a := c.attempt(pod)
		if a.gangs == nil {
			return a.node, !a.notMember, a.rejection
		}
		// Gangs that run with fewer members than they need, since the scheduler was
		// restarted while it bound them, or members died, come first: the unit could take
		// the nodes that only they can use. Without room their leaders try again when
		// something changes.
		for _, gangs := range a.interrupted {
			if plans, leaving, _ := plan(gangs, false); plans != nil {
				c.mu.Lock()
				c.commit(gangs, pod, plans, leaving)
				c.unlock()
			}
		}
		plans, leaving, reason := plan(a.gangs, true)
		if node, rejection, current := c.conclude(pod, a.gangs, plans, leaving, reason); current {
			return node, true, rejection
		}
	}
	return "", true, "the gang changes faster than it is planned"
}

// attempt is what is to be planned for a pod, if that is of any use.
func (c *Cache) attempt(pod *corev1.Pod) attempt {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	if m == nil {
		return attempt{notMember: true}
	}
	g := m.gang
	if m.onItsWay() {
		g.rejected.accept()
		return attempt{node: m.node}
	}
	unit, missing := c.unit(g)
	reason := ""
	switch faulty := slices.IndexFunc(unit, func(u *gangInfo) bool { return u.err != nil }); {
	case g.err != nil:
		c.reject(g, g.err.Error(), m)
		reason = g.rejected.reason
	case missing != "" && !g.satisfied():
		reason = "waits for " + missing
	case g.rejected.repeats(m):
		m.notified = true
		reason = g.rejected.reason
	case faulty >= 0:
		reason = fmt.Sprintf("podgroup %s of its groups: %v", unit[faulty].key.Name, unit[faulty].err)
	}
	if reason != "" {
		return attempt{rejection: g.rejection(reason)}
	}
	a := attempt{gangs: c.toPlan(unit, g)}
	if !g.once {
		for _, i := range c.interrupted(g, m.priority()) {
			unit, _ := c.unit(i)
			a.interrupted = append(a.interrupted, c.toPlan(unit, i))
		}
	}
	return a
}

// toPlan are the gangs of a unit that need nodes. The one that is tried is planned
// even if it has what it needs: for one member more. It is the first.
func (c *Cache) toPlan(u unit, tried *gangInfo) (gangs []planner.Gang) {
	due, now := map[*gangInfo]bool{}, time.Now()
	if !tried.rejected.since.IsZero() && now.Sub(tried.rejected.since) >= c.Queue.After {
		due = c.due(c.Queue, now)
	}
	for _, g := range u {
		if g != tried && (g.satisfied() || !g.deadline.IsZero()) {
			continue
		}
		s := g.snapshot(c.Backoffs.Nodes(g.key))
		if g != tried {
			gangs = append(gangs, s)
			continue
		}
		s.Due, s.Advance = due[g], g.advance
		gangs = slices.Insert(gangs, 0, s)
	}
	return gangs
}

// conclude takes over the plans of a member's gangs, and is its node or its rejection. The
// reason is that of the planner, if there are no plans. It does nothing, and current is false, if
// a gang changed while it was planned.
func (c *Cache) conclude(
	pod *corev1.Pod, gangs []planner.Gang, plans []planner.Plan, leaving []*corev1.Pod, reason string,
) (node, rejection string, current bool) {
	c.mu.Lock()
	defer c.unlock()
	if plans != nil && !c.commit(gangs, pod, plans, leaving) {
		return "", "", false
	}
	m := c.of(pod)
	if m == nil {
		return "", "the pod is gone", true
	}
	g := m.gang
	if plans == nil {
		reason += c.Backoffs.Reason(g.key)
	}
	switch {
	case plans != nil && m.stage != pending:
		return m.node, "", true
	case plans != nil:
		m.notified = true
		reason = "others of the gang come before this pod, and there is no room for more"
	case g.hasReservedEnough():
		// There is no room for one more, and the others are on their way.
		m.notified = true
	default:
		if !g.satisfied() {
			c.release(g, reason)
		}
		c.reject(g, reason, m)
		reason = g.rejected.reason
	}
	return "", g.rejection(reason), true
}
