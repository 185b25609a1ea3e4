package gangcache

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// This file has the steps of a scheduling cycle, in the order of the framework.

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
	m := c.members[pod.UID]
	if m == nil {
		if m, added = c.put(pod); m == nil {
			return false, "" // In no gang, or with a fault, which PreFilter rejects.
		}
	}
	g := m.gang
	reason = c.gangs.incomplete(g)
	switch {
	case reason != "" || g.once:
		g.completeSince = time.Time{}
	case g.completeSince.IsZero():
		g.completeSince = time.Now()
	}
	if added && reason == "" {
		c.effects.retry[g.key] = true
	}
	return added, reason
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
		m := c.members[pod.UID]
		if m == nil {
			return "", false, ""
		}
		g := m.gang
		if m.stage == planned || m.stage == reserved {
			g.accept()
			return m.node, true, ""
		}
		unit, reason := c.attempt(m)
		if reason != "" {
			return "", true, g.rejection(reason)
		}
		gangs, others := c.toPlan(unit, g), [][]planner.Gang{}
		if !g.once {
			for _, i := range c.gangs.interrupted(g, m.priority()) {
				unit, _ := c.gangs.unit(i)
				others = append(others, c.toPlan(unit, i))
			}
		}
		// Gangs that run with fewer members than they need, since the scheduler was
		// restarted while it bound them, or members died, come first: the unit could take
		// the nodes that only they can use. Without room their leaders try again when
		// something changes.
		for _, o := range others {
			c.plan(o, pod, plan, false)
		}
		if reason, current := c.plan(gangs, pod, plan, true); current {
			node, rejection = c.conclude(pod, reason)
			return node, true, rejection
		}
	}
	return "", true, "the gang changes faster than it is planned"
}

// attempt is the unit to plan for a member, or why that is of no use.
func (c *Cache) attempt(m *member) (unit []*gangInfo, reason string) {
	g := m.gang
	unit, missing := c.gangs.unit(g)
	switch {
	case g.err != nil:
		c.reject(g, g.err.Error(), m)
		return nil, g.reason
	case missing != "" && !g.satisfied():
		return nil, "waits for " + missing
	case g.repeats(m):
		m.notified = true
		return nil, g.reason
	}
	for _, u := range unit {
		if u.err != nil {
			return nil, fmt.Sprintf("podgroup %s of its groups: %v", u.key.Name, u.err)
		}
	}
	return unit, ""
}

// toPlan are the gangs of a unit that need nodes. The one that is tried is planned
// even if it has what it needs: for one member more. It is the first.
func (c *Cache) toPlan(unit []*gangInfo, tried *gangInfo) (gangs []planner.Gang) {
	due, now := map[*gangInfo]bool{}, time.Now()
	if !tried.rejectedSince.IsZero() && now.Sub(tried.rejectedSince) >= c.Queue.After {
		due = c.gangs.due(c.Queue, now)
	}
	for _, g := range unit {
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

// plan reserves the nodes of plans, and activates the members that have one now,
// except for the pod that is tried. It does nothing, and current is false, if a gang
// changed while it was planned.
func (c *Cache) plan(unit []planner.Gang, tried *corev1.Pod, plan Plan, mayPreempt bool) (reason string, current bool) {
	c.mu.Unlock()
	plans, leaving, reason := plan(unit, mayPreempt)
	c.mu.Lock()
	if plans == nil {
		return reason, true
	}
	for i := range unit {
		if g := c.gangs[unit[i].Key]; g == nil || g.revision != unit[i].Revision {
			return "", false
		}
	}
	pods := newPreemption(leaving)
	for i, plan := range plans {
		g := c.gangs[unit[i].Key]
		for at, node := range plan.Nodes {
			if m := g.members[unit[i].Members[at].Pod.UID]; node != "" && m.stage == pending {
				m.stage, m.node = planned, node
				pods.await(m.pod.UID)
				if m.pod.UID != tried.UID {
					c.effects.activate(m.pod)
				}
			}
		}
		if !g.satisfied() {
			g.placedIn = plan.Kind
		}
		c.giveBack(g)
		g.preemption, g.activated = pods, time.Now()
		g.deadline = time.Now().Add(max(g.spec.Timeout, pods.timeout()))
	}
	c.reservations = c.gangs.reservations(nil)
	return "", true
}

// conclude is the node of a member that was planned, or its rejection. reason is that
// of the planner, empty if the plans are committed.
func (c *Cache) conclude(pod *corev1.Pod, reason string) (node, rejection string) {
	m := c.members[pod.UID]
	if m == nil {
		return "", "the pod is gone"
	}
	g := m.gang
	if reason != "" {
		reason += c.Backoffs.Reason(g.key)
	}
	switch {
	case reason == "":
		g.accept()
		if m.stage == pending {
			m.notified = true
			return "", g.rejection("others of the gang come before this pod, and there is no room for more")
		}
		return m.node, ""
	case g.hasReservedEnough():
		// There is no room for one more, and the others are on their way.
		m.notified = true
		return "", g.rejection(reason)
	case !g.satisfied():
		c.release(g, reason)
	}
	c.reject(g, reason, m)
	return "", g.rejection(g.reason)
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
	m := c.members[pod.UID]
	return m != nil && m.gang.count(reserved) == 0
}

// TurnedAway is for PostFilter: the node of a plan rejected the member, and others would
// too. The gang avoids them and plans again, with the members that hold a node where they
// are; after MaxRetries it releases all.
func (c *Cache) TurnedAway(pod *corev1.Pod, node, message string, others ...string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.members[pod.UID]
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
	c.reservations = c.gangs.reservations(nil)
	c.effects.activate(pod)
}

// Unreserve takes a member's node back, and all that its gang holds if that still
// waits: without this member it is not complete. A member that could not be bound keeps
// its node reserved, since others of its gang run by now.
func (c *Cache) Unreserve(pod *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.members[pod.UID]
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
	c.reservations = c.gangs.reservations(nil)
}

// Permit notes that a member holds its node, unless its plan has changed. wait is for
// how long it waits for the others of its gang, and of the gangs that it runs with:
// zero once enough of all have a node, and all others go on.
func (c *Cache) Permit(pod *corev1.Pod, node string) (wait time.Duration, rejection string) {
	c.mu.Lock()
	defer c.unlock()
	m := c.members[pod.UID]
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
	unit, missing := c.gangs.unit(m.gang)
	enough := missing == "" || m.gang.once
	for _, u := range unit {
		enough = enough && u.satisfied()
	}
	if !enough {
		return max(time.Until(m.gang.deadline), 0) + permitSlack, ""
	}
	for _, u := range unit {
		for uid, m := range u.members {
			if m.stage == reserved {
				m.stage = released
				if uid != pod.UID {
					c.effects.Allow = append(c.effects.Allow, uid)
				}
			}
		}
		if !u.once {
			c.Metrics.placed.WithLabelValues(cmp.Or(u.placedIn, "none")).Inc()
		}
		u.accept()
		c.Backoffs.End(u.key)
		u.once, u.rejectedSince, u.retries = true, time.Time{}, 0
	}
	c.reservations = c.gangs.reservations(nil)
	return 0, ""
}

// WorthTrying reports whether a cycle of this pod could have another result than the
// last one: of a rejected gang only the leader's.
func (c *Cache) WorthTrying(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.unlock()
	m := c.members[pod.UID]
	return m == nil || !m.gang.repeats(m)
}
