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
	m := c.lock(pod)
	defer c.unlock()
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
	m := c.lock(pod)
	defer c.unlock()
	return m != nil && m.gang.count(reserved) == 0
}

// TurnedAway is for PostFilter: the node of a plan rejected the member, and others would
// too. The gang avoids them and plans again, with the members that hold a node where they
// are; after MaxRetries it releases all.
func (c *Cache) TurnedAway(pod *corev1.Pod, node, message string, others ...string) {
	m := c.lock(pod)
	defer c.unlock()
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
	m := c.lock(pod)
	defer c.unlock()
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
	m := c.lock(pod)
	defer c.unlock()
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
	m := c.lock(pod)
	defer c.unlock()
	return m == nil || !m.gang.rejected.repeats(m)
}

// Plan plans gangs together, with pods of a lower priority gone if it may and must:
// those that leave. The reason is why there is no plan, or none without preemption.
type Plan func(gangs []planner.Gang, mayPreempt bool) (plans []planner.Plan, leaving []*corev1.Pod, reason string)

// Place is for PreFilter: the node of a member, by an earlier plan or by one that is
// made now, without the lock, for all gangs that it runs with; or why it has none.
func (c *Cache) Place(pod *corev1.Pod, plan Plan) (node string, member bool, rejection string) {
	c.mu.Lock()
	defer c.unlock()
	for range 3 {
		m := c.of(pod)
		if m == nil {
			return "", false, ""
		}
		g := m.gang
		if m.onItsWay() {
			g.rejected.accept()
			return m.node, true, ""
		}
		unit, reason := c.attempt(m)
		if reason != "" {
			return "", true, g.rejection(reason)
		}
		gangs := c.toPlan(unit, g)
		if !g.once {
			// Gangs that run with fewer members than they need, since the scheduler was
			// restarted while it bound them, or members died, come first: the unit could take
			// the nodes that only they can use. Without room their leaders try again when
			// something changes.
			for _, i := range c.interrupted(g, m.priority()) {
				unit, _ := c.unit(i)
				_, _ = c.plan(plan, c.toPlan(unit, i), pod, false)
			}
		}
		reason, current := c.plan(plan, gangs, pod, true)
		if !current {
			continue
		}
		if m = c.of(pod); m == nil {
			return "", true, "the pod is gone"
		}
		if reason = c.conclude(m, reason); reason != "" {
			return "", true, m.gang.rejection(reason)
		}
		return m.node, true, ""
	}
	return "", true, "the gang changes faster than it is planned"
}

// plan plans without the lock, and takes the plans over. It does nothing, and current is
// false, if a gang changed while it was planned. The reason is why there are no plans.
func (c *Cache) plan(
	plan Plan, gangs []planner.Gang, tried *corev1.Pod, mayPreempt bool,
) (reason string, current bool) {
	unlocked := func() ([]planner.Plan, []*corev1.Pod, string) {
		c.unlock()
		defer c.mu.Lock() // Of a panic too: Place unlocks.
		return plan(gangs, mayPreempt)
	}
	plans, leaving, reason := unlocked()
	if plans == nil {
		return reason, true
	}
	return "", c.commit(gangs, tried, plans, leaving)
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
	if at := slices.IndexFunc(u, func(other *gangInfo) bool { return other.err != nil }); at >= 0 {
		return nil, fmt.Sprintf("podgroup %s of its groups: %v", u[at].key.Name, u[at].err)
	}
	return u, ""
}

// toPlan are the gangs of a unit that need nodes. The one that is tried is planned
// even if it has what it needs: for one member more. It is the first.
func (c *Cache) toPlan(u unit, tried *gangInfo) (gangs []planner.Gang) {
	due, now := map[*gangInfo]bool{}, time.Now()
	if !tried.rejected.since.IsZero() && now.Sub(tried.rejected.since) >= c.ReserveAfter {
		due = c.due(now)
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

// conclude is why a member has no node that was planned; empty if it has one. The reason is
// that of the planner.
func (c *Cache) conclude(m *member, reason string) string {
	g := m.gang
	if reason == "" {
		if m.stage != pending {
			return ""
		}
		m.notified = true
		return "others of the gang come before this pod, and there is no room for more"
	}
	_, avoided := c.Backoffs.Avoided(g.key)
	reason += avoided
	if g.hasReservedEnough() {
		// There is no room for one more, and the others are on their way.
		m.notified = true
		return reason
	}
	if !g.satisfied() {
		c.release(g, reason)
	}
	c.reject(g, reason, m)
	return g.rejected.reason
}
