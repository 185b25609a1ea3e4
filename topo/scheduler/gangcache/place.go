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
			plans, leaving, _ := plan(gangs, false)
			c.commit(gangs, pod, plans, leaving)
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
	m := c.gangs.of(pod)
	if m == nil {
		return attempt{notMember: true}
	}
	g := m.gang
	if m.stage == planned || m.stage == reserved {
		g.rejected.accept()
		return attempt{node: m.node}
	}
	unit, reason := c.gangs.attempt(m)
	if reason != "" {
		return attempt{rejection: g.rejection(reason)}
	}
	a := attempt{gangs: c.toPlan(unit, g)}
	if !g.once {
		for _, i := range c.gangs.interrupted(g, m.priority()) {
			unit, _ := c.gangs.unit(i)
			a.interrupted = append(a.interrupted, c.toPlan(unit, i))
		}
	}
	return a
}

// attempt is the unit to plan for a member, or why that is of no use.
func (all *gangs) attempt(m *member) (u unit, reason string) {
	g := m.gang
	u, missing := all.unit(g)
	switch {
	case g.err != nil:
		all.reject(g, g.err.Error(), m)
		return nil, g.rejected.reason
	case missing != "" && !g.satisfied():
		return nil, "waits for " + missing
	case g.rejected.repeats(m):
		m.notified = true
		return nil, g.rejected.reason
	}
	for _, other := range u {
		if other.err != nil {
			return nil, fmt.Sprintf("podgroup %s of its groups: %v", other.key.Name, other.err)
		}
	}
	return u, ""
}

// toPlan are the gangs of a unit that need nodes. The one that is tried is planned
// even if it has what it needs: for one member more. It is the first.
func (c *Cache) toPlan(u unit, tried *gangInfo) (gangs []planner.Gang) {
	due, now := map[*gangInfo]bool{}, time.Now()
	if !tried.rejected.since.IsZero() && now.Sub(tried.rejected.since) >= c.Queue.After {
		due = c.gangs.due(c.Queue, now)
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

// commit takes over the plans of gangs that come before the pod's.
func (c *Cache) commit(gangs []planner.Gang, tried *corev1.Pod, plans []planner.Plan, leaving []*corev1.Pod) {
	c.mu.Lock()
	defer c.unlock()
	if plans != nil {
		c.gangs.commit(gangs, tried, plans, leaving)
	}
}

// conclude takes over the plans of a member's gangs, and is its node or its rejection. The
// reason is that of the planner. It does nothing, and current is false, if a gang changed
// while it was planned.
func (c *Cache) conclude(
	pod *corev1.Pod, gangs []planner.Gang, plans []planner.Plan, leaving []*corev1.Pod, reason string,
) (node, rejection string, current bool) {
	c.mu.Lock()
	defer c.unlock()
	if plans != nil {
		reason = ""
		if !c.gangs.commit(gangs, pod, plans, leaving) {
			return "", "", false
		}
	}
	m := c.gangs.of(pod)
	if m == nil {
		return "", "the pod is gone", true
	}
	g := m.gang
	if reason != "" {
		reason += c.Backoffs.Reason(g.key)
	}
	node, reason = c.gangs.conclude(m, reason)
	if reason != "" {
		rejection = g.rejection(reason)
	}
	return node, rejection, true
}

// conclude is the node of a member that was planned, or why it has none. The reason is
// empty if plans are committed.
func (all *gangs) conclude(m *member, reason string) (node, rejection string) {
	g := m.gang
	switch {
	case reason == "":
		if m.stage == pending {
			m.notified = true
			return "", "others of the gang come before this pod, and there is no room for more"
		}
		return m.node, ""
	case g.hasReservedEnough():
		// There is no room for one more, and the others are on their way.
		m.notified = true
		return "", reason
	case !g.satisfied():
		all.release(g, reason)
	}
	all.reject(g, reason, m)
	return "", g.rejected.reason
}
