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
	// permitSlack is the additional time for which the framework lets a pod wait in Permit, so that
	// the gang's own deadline, which has the reason, comes first.
	permitSlack = time.Minute
	// MaxRetries bounds the plans around nodes that rejected members before a gang releases all its
	// nodes.
	MaxRetries = 3
)

// Admit decides for PreEnqueue. reason says what the pod's gang waits for; it is empty if the pod
// may enter the queue. added reports that the pod was not known. The cache may know a newer version
// of the pod than the queue.
func (c *Cache) Admit(pod *corev1.Pod) (added bool, reason string) {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil {
		if m, added = c.put(pod); m == nil {
			return false, "" // It is in no gang, or PreFilter rejects it.
		}
	}
	g := m.gang
	reason = c.incomplete(g)
	m.admitted = reason == ""
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

// Snapshot holds the part of the cache that a member's scheduling cycle needs. Without a node and a
// rejection the cycle plans and commits the units one after another.
type Snapshot struct {
	// Member reports whether the pod is in a gang.
	Member bool
	// Node is the member's node by a plan, Rejection why it gets none. Leaving are the pods that
	// must leave the nodes of its plan.
	Node, Rejection string
	Leaving         []*corev1.Pod
	// First reports that no member holds a node, so that the others cannot be what rejects it.
	First bool
	// Units are gangs that are planned together. The last unit is the member's own. Those before
	// run with fewer members than they need, since members died or the scheduler was restarted
	// while it bound them: the last unit could take the nodes that only they can use.
	Units [][]planner.Gang
}

// Snapshot returns what a pod's scheduling cycle is to plan.
func (c *Cache) Snapshot(pod *corev1.Pod) Snapshot {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil {
		return Snapshot{}
	}
	g := m.gang
	m.admitted = true
	if m.onItsWay() {
		g.rejected.accept()
		return m.placed()
	}
	out := Snapshot{Member: true}
	own, reason := c.attempt(m)
	if reason != "" {
		out.Rejection = g.rejection(reason)
		return out
	}
	if !g.once {
		for _, i := range c.interrupted(g, m.priority()) {
			unit, _ := c.unit(i)
			out.Units = append(out.Units, c.toPlan(unit, i))
		}
	}
	out.Units = append(out.Units, c.toPlan(own, g))
	return out
}

// placed returns the snapshot of a member with a node by a plan.
func (m *member) placed() Snapshot {
	out := Snapshot{Member: true, Node: m.Node, First: m.gang.count(reserved) == 0}
	if m.stage == planned && m.gang.preemption != nil {
		out.Leaving = m.gang.preemption.leaving
	}
	return out
}

// Commit takes over the plan for a unit of a snapshot. current is false, and nothing changes, if
// a gang of the unit changed since the snapshot. The new snapshot of the member is empty after
// units that are not its own.
func (c *Cache) Commit(pod *corev1.Pod, unit []planner.Gang, plan *planner.Plan) (now Snapshot, current bool) {
	m := c.lock(pod)
	defer c.unlock()
	reason := plan.Reason
	if plan.Places != nil {
		if reason = ""; !c.commit(unit, pod, plan) {
			return Snapshot{}, false
		}
	}
	switch {
	case m == nil:
		return Snapshot{Rejection: "the pod is gone"}, true
	case m.gang.key != unit[0].Key:
		return Snapshot{}, true
	}
	if reason = c.conclude(m, reason); reason != "" {
		return Snapshot{Member: true, Rejection: m.gang.rejection(reason)}, true
	}
	return m.placed(), true
}

// commit gives members the nodes of a plan, which ends the rejections of their gangs, and
// activates those that can be tried now, except for the pod that is tried.
func (c *Cache) commit(unit []planner.Gang, tried *corev1.Pod, plan *planner.Plan) bool {
	for i := range unit {
		if g := c.byKey[unit[i].Key]; g == nil || g.revision != unit[i].Revision {
			return false
		}
	}
	var p *preemption
	if len(plan.Leaving) > 0 {
		p = &preemption{leaving: plan.Leaving}
	}
	for i := range plan.Places {
		g := c.byKey[unit[i].Key]
		again := g.place(unit[i].Members, &plan.Places[i], p)
		c.endHold(g)
		if g.rejected.reason != "" {
			// Events during the leader's cycle woke none of the others, and may be missing in
			// the plan.
			again = append(again, g.ranked((*member).waits)...)
			g.rejected.accept()
		}
		for _, m := range again {
			if m.Pod.UID != tried.UID {
				c.effects.activate(m.Pod)
			}
		}
	}
	c.renew()
	return true
}

// attempt returns the unit to plan for a member, or why planning is of no use.
func (c *Cache) attempt(m *member) (u []*gangInfo, reason string) {
	g := m.gang
	u, missing := c.unit(g)
	switch {
	case g.err != nil:
		c.reject(g, g.err.Error(), m)
		return nil, g.rejected.reason
	case missing != "" && !g.satisfied():
		return nil, "waits for " + missing
	case g.rejected.repeats(m):
		return nil, g.rejected.reason
	}
	if at := slices.IndexFunc(u, func(other *gangInfo) bool { return other.err != nil }); at >= 0 {
		return nil, fmt.Sprintf("podgroup %s of its groups: %v", u[at].key.Name, u[at].err)
	}
	return u, ""
}

// toPlan returns the gangs of a unit that need nodes. The tried gang comes first, even if it is
// satisfied: it is planned for one member more.
func (c *Cache) toPlan(u []*gangInfo, tried *gangInfo) (gangs []planner.Gang) {
	for _, g := range u {
		if g != tried && (g.satisfied() || !g.deadline.IsZero()) {
			continue
		}
		avoid, _ := c.Backoffs.Avoided(g.key)
		at := len(gangs)
		if g == tried {
			at = 0
		}
		gangs = slices.Insert(gangs, at, g.snapshot(avoid))
	}
	return gangs
}

// conclude returns why a member has no node by a plan; empty if it has one. reason is the
// planner's.
func (c *Cache) conclude(m *member, reason string) string {
	g := m.gang
	if reason == "" {
		if m.stage != pending {
			return ""
		}
		return "other members of the gang come first, and no more fit"
	}
	_, avoided := c.Backoffs.Avoided(g.key)
	reason += avoided + c.heldFor(m)
	if !g.satisfied() {
		if n := g.spec.MinMember; n > 0 && !g.deadline.IsZero() && g.count(planned) >= n {
			return reason // The others have their nodes, and one more member does not fit.
		}
		c.release(g, reason)
	}
	c.reject(g, reason, m)
	return g.rejected.reason
}

// Block remembers a pod of no gang that found no node beside the reservations.
func (c *Cache) Block(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.unlock()
	c.blocked[pod.UID] = pod
}

// TurnedAway is for PostFilter: the node of a plan rejected the member, and others would too.
// The gang avoids them and plans again around the members that hold a node. After MaxRetries it
// releases all nodes.
func (c *Cache) TurnedAway(pod *corev1.Pod, node, message string, others ...string) {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil || m.stage != planned || m.Node != node {
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

// Unreserve takes a member's node back, and all nodes of its gang if that still waits, since it
// is not complete without the member. A member that could not be bound keeps its node
// reserved: others of its gang run already.
func (c *Cache) Unreserve(pod *corev1.Pod, node string) {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil || m.Node != node || m.stage > released {
		return
	}
	if m.stage < released {
		m.stage, m.Node = pending, ""
		c.release(m.gang, fmt.Sprintf("member %s lost its place on node %s", pod.Name, node))
		return
	}
	m.stage, m.unbound = planned, true
	m.gang.invalidate()
	m.gang.resolve()
	m.gang.activated, m.gang.deadline = time.Now(), time.Now().Add(m.gang.spec.Timeout)
	c.renew()
}

// Permit notes that a member holds its node; rejection is set if its plan has changed. wait is
// how long it waits for the others of its gang, and of the gangs that it runs with: zero once
// enough members of all hold a node, and all go on.
func (c *Cache) Permit(pod *corev1.Pod, node string) (wait time.Duration, rejection string) {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil {
		return 0, ""
	}
	if m.stage != planned || m.Node != node {
		return 0, m.gang.rejection(fmt.Sprintf("its plan changed, and node %s is no longer the pod's place", node))
	}
	m.stage = reserved
	if c.tried(m.gang) {
		c.activatePlanned(m.gang, pod) // A member that waits for room starts the eviction.
	}
	unit, missing := c.unit(m.gang)
	if missing != "" && !m.gang.once || slices.ContainsFunc(unit, func(g *gangInfo) bool { return !g.satisfied() }) {
		return max(time.Until(m.gang.deadline), 0) + permitSlack, ""
	}
	for _, u := range unit {
		if !u.once {
			c.Metrics.placed.WithLabelValues(cmp.Or(u.placedIn, "none")).Inc()
		}
		for _, started := range u.start() {
			if started != m {
				c.effects.Allow = append(c.effects.Allow, started.Pod.UID)
			}
		}
		c.Backoffs.End(u.key)
	}
	c.renew()
	return 0, ""
}

// WorthTrying reports whether another cycle of this pod could have another result: of a
// rejected gang only the leader's.
func (c *Cache) WorthTrying(pod *corev1.Pod) bool {
	m := c.lock(pod)
	defer c.unlock()
	return m == nil || !m.gang.rejected.repeats(m)
}
