package gangcache

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

const (
	// permitSlack is how much longer the framework lets a pod wait in Permit than the
	// gang does: the gang's own deadline comes first, and has the reason.
	permitSlack = time.Minute
	// MaxRetries is how often a gang plans around nodes that rejected members before
	// it releases all that it holds.
	MaxRetries = 3
)

// Admit is for PreEnqueue: what a pod's gang waits for, empty if the pod may enter
// the queue. added reports that the pod was not known. A pod that is known may be
// newer here than in the queue.
func (c *Cache) Admit(pod *corev1.Pod) (added bool, reason string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	if m == nil {
		if m, added = c.put(pod); m == nil {
			return false, "" // In no gang, or with a fault, which PreFilter rejects.
		}
	}
	g := m.gang
	reason = c.incomplete(g)
	switch {
	case reason != "" || g.once:
		g.completeSince = time.Time{}
	case g.completeSince.IsZero():
		g.completeSince = time.Now()
	}
	if added && reason == "" {
		c.retry(g.key)
	}
	return added, reason
}

// Block remembers a pod of no gang that found no node beside the reservations.
func (c *Cache) Block(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.unlock()
	c.blocked[pod.UID] = pod
}

// HoldsNone reports whether no member of a pod's gang holds a node: what rejects the pod
// now are not the others.
func (c *Cache) HoldsNone(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	return m != nil && m.gang.count(reserved) == 0
}

// TurnedAway is for PostFilter: the node of a plan rejected the member, and others would
// too. The gang avoids them and plans again, with the members that hold a node where they
// are; after MaxRetries it releases all.
func (c *Cache) TurnedAway(pod *corev1.Pod, node, message string, others ...string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	if m == nil || m.stage != planned || m.node != node {
		return
	}
	g := m.gang
	c.Backoffs.Add(g.key, message, append(others, node)...)
	if g.retries++; g.retries > MaxRetries {
		g.retries = 0
		c.release(g, fmt.Sprintf("member %s has no place: node %s: %s", pod.Name, node, message))
		return
	}
	c.unplan(g)
	c.effects.activate(pod)
}

// Unreserve takes a member's node back, and all that its gang holds if that still
// waits: without this member it is not complete. A member that could not be bound keeps
// its node reserved, since others of its gang run by now.
func (c *Cache) Unreserve(pod *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	if m == nil || m.node != node || m.stage > released {
		return
	}
	if m.stage < released {
		m.stage, m.node = pending, ""
		c.release(m.gang, fmt.Sprintf("member %s lost its place on node %s", pod.Name, node))
		return
	}
	m.stage, m.unbound = planned, true
	m.gang.invalidate()
	m.gang.resolve()
	m.gang.activated, m.gang.deadline = time.Now(), time.Now().Add(m.gang.spec.Timeout)
	c.renew()
}

// Permit notes that a member holds its node, unless its plan has changed. wait is for
// how long it waits for the others of its gang, and of the gangs that it runs with:
// zero once enough of all have a node, and all others go on.
func (c *Cache) Permit(pod *corev1.Pod, node string) (wait time.Duration, rejection string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	if m == nil {
		return 0, ""
	}
	if m.stage != planned || m.node != node {
		return 0, m.gang.rejection(fmt.Sprintf("its plan changed, and node %s is no longer the pod's place", node))
	}
	m.stage = reserved
	if m.gang.preemption.tried(pod.UID) {
		c.activatePlanned(m.gang, pod) // One of those that wait for room has the others evicted.
	}
	unit, missing := c.unit(m.gang)
	if missing != "" && !m.gang.once || !unit.satisfied() {
		return max(time.Until(m.gang.deadline), 0) + permitSlack, ""
	}
	for _, u := range unit {
		if !u.once {
			c.Metrics.placed.WithLabelValues(cmp.Or(u.placedIn, "none")).Inc()
		}
		for _, started := range u.start() {
			if started != m {
				c.effects.Allow = append(c.effects.Allow, started.pod.UID)
			}
		}
		c.Backoffs.End(u.key)
	}
	c.renew()
	return 0, ""
}

// WorthTrying reports whether a cycle of this pod could have another result than the
// last one: of a rejected gang only the leader's.
func (c *Cache) WorthTrying(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.unlock()
	m := c.of(pod)
	return m == nil || !m.gang.rejected.repeats(m)
}

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
		avoid, _ := c.Backoffs.Avoided(g.key)
		s := g.snapshot(avoid)
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
		_, avoided := c.Backoffs.Avoided(g.key)
		reason += avoided
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
