package gangcache

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
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
	// preemptionTimeout is how long a reservation holds at least that other pods must
	// leave first: a pod's usual grace period, and some.
	preemptionTimeout = 2 * time.Minute
)

// Admit is for PreEnqueue: what a pod's gang waits for, empty if the pod may enter
// the queue. added reports that the pod was not known. A pod that is known may be
// newer here than in the queue.
func (c *Cache) Admit(pod *corev1.Pod) (added bool, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		if g, added = c.put(pod); g == nil {
			return false, "" // In no gang, or with a fault, which PreFilter rejects.
		}
	}
	reason = c.incomplete(g)
	switch {
	case reason != "" || g.once:
		g.completeSince = time.Time{}
	case g.completeSince.IsZero():
		g.completeSince = c.now()
	}
	if added && reason == "" {
		c.enqueue(g.key)
	}
	return added, reason
}

// Attempt is what PreFilter finds out about a member.
type Attempt struct {
	// Node is that of an earlier plan, and Rejection the rejection of one. Without
	// either, Unit is to be planned.
	Node, Rejection string
	// Unit are the gangs that are planned together.
	Unit []planner.Gang
	// Interrupted are gangs that run with fewer members than they need: the scheduler
	// was restarted while it bound them, or members died. They are planned first,
	// since the unit could take the nodes that only they can use.
	Interrupted [][]planner.Gang
}

// Attempt begins the scheduling cycle of a member; false for a pod in no gang.
func (c *Cache) Attempt(pod *corev1.Pod) (Attempt, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		return Attempt{}, false
	}
	rejected := func(reason string) (Attempt, bool) { return Attempt{Rejection: g.rejection(reason)}, true }
	m := g.members[pod.UID]
	unit, missing := c.unit(g)
	switch {
	case g.err != nil:
		c.countRejection(g, g.err.Error())
		return rejected(g.err.Error())
	case m.stage == planned, m.stage == reserved:
		g.accept()
		return Attempt{Node: m.node}, true
	case missing != nil && !g.satisfied():
		return rejected(fmt.Sprintf("podgroup %s of its groups does not exist", missing))
	case g.reason != "" && g.leader != pod.UID && c.waits(g.leader):
		m.notified = true
		return rejected(g.reason)
	}
	for _, u := range unit {
		if u.err != nil {
			return rejected(fmt.Sprintf("podgroup %s of its groups: %v", u.key.Name, u.err))
		}
	}
	a := Attempt{Unit: c.toPlan(unit, g)}
	if !g.once {
		for _, i := range c.interrupted(g, pod) {
			iu, _ := c.unit(i)
			a.Interrupted = append(a.Interrupted, c.toPlan(iu, i))
		}
	}
	return a, true
}

// toPlan are the gangs of a unit that need nodes. The one that is tried is planned
// even if it has what it needs: for one member more.
func (c *Cache) toPlan(unit []*gangInfo, tried *gangInfo) (gangs []planner.Gang) {
	for _, g := range unit {
		if g == tried || !g.satisfied() && g.deadline.IsZero() {
			gangs = append(gangs, g.snapshot(c.now()))
		}
	}
	return gangs
}

// Commit reserves the nodes of plans, and activates the members that have one now,
// except for the pod that is being tried. It does nothing and reports false if a gang
// changed while it was planned.
func (c *Cache) Commit(unit []planner.Gang, plans []planner.Plan, preempt bool, tried *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range unit {
		if g := c.gangs[unit[i].Key]; g == nil || g.revision != unit[i].Revision {
			return false
		}
	}
	for i, plan := range plans {
		g := c.gangs[unit[i].Key]
		for at, node := range plan.Nodes {
			if m := g.members[unit[i].Members[at].Pod.UID]; node != "" && m.stage == pending {
				m.stage, m.node = planned, node
				if m.pod.UID != tried.UID {
					c.effects.activate(m.pod)
				}
			}
		}
		if !g.satisfied() {
			g.placedIn = plan.Kind
		}
		g.preempting, g.activated = preempt, c.now()
		g.deadline = c.now().Add(g.spec.Timeout)
		if preempt {
			g.deadline = c.now().Add(max(g.spec.Timeout, preemptionTimeout))
		}
	}
	c.updateReservations()
	c.changed.Notify()
	return true
}

// Conclude ends PreFilter of a member that was planned: with its node, or with the
// rejection. reason is that of the planner, empty if the plans are committed.
func (c *Cache) Conclude(pod *corev1.Pod, reason string) (node, rejection string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		return "", "the pod is gone"
	}
	m := g.members[pod.UID]
	switch {
	case reason == "" && m.stage == pending:
		m.notified = true
		g.accept()
		return "", g.rejection("others of the gang come before this pod, and there is no room for more")
	case reason == "":
		g.accept()
		return m.node, ""
	case g.hasReservedEnough():
		// There is no room for one more, and the others are on their way.
		m.notified = true
		return "", g.rejection(reason)
	case !g.satisfied():
		unit, _ := c.unit(g)
		c.release(unit, reason)
	}
	c.reject(g, reason, pod.UID)
	return "", g.rejection(reason)
}

// Block remembers a pod of no gang that found no node beside the reservations.
func (c *Cache) Block(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked[pod.UID] = pod
}

// TurnedAway is for PostFilter: the node of a plan rejected the member. It reports
// true if the scheduler's preemption is to go on, as the plan expects. Otherwise the
// gang avoids the node and plans again, with the members that hold a node where they
// are; after MaxRetries it releases all.
func (c *Cache) TurnedAway(pod *corev1.Pod, node string, preemptable bool, message string) (preempt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil || g.members[pod.UID].stage != planned {
		return false
	}
	if g.preempting && preemptable {
		return true
	}
	g.backoff.add(node, c.now())
	if g.retries++; g.retries > MaxRetries {
		g.retries = 0
		unit, _ := c.unit(g)
		c.release(unit, fmt.Sprintf("member %s has no place: node %s: %s", pod.Name, node, message))
		return false
	}
	g.unplan()
	c.updateReservations()
	c.effects.activate(pod)
	c.changed.Notify()
	return false
}

// Reserve notes that a member holds its node.
func (c *Cache) Reserve(pod *corev1.Pod, node string) (rejection string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		return ""
	}
	m := g.members[pod.UID]
	if m.stage != planned || m.node != node {
		return g.rejection(fmt.Sprintf("its plan changed, and node %s is no longer the pod's place", node))
	}
	m.stage = reserved
	return ""
}

// Unreserve takes a member's node back, and all that its gang holds if that still
// waits: without this member it is not complete.
func (c *Cache) Unreserve(pod *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		return
	}
	switch m := g.members[pod.UID]; m.stage {
	case reserved:
		unit, _ := c.unit(g)
		m.stage, m.node = pending, ""
		c.release(unit, fmt.Sprintf("member %s lost its place on node %s", pod.Name, node))
	case released:
		m.stage, m.node = pending, ""
		g.revision++
		c.updateReservations()
	default:
	}
}

// Permit is how long a member waits for the others of its gang, and of the gangs
// that it runs with: zero once enough of all have a node, and all others go on.
func (c *Cache) Permit(pod *corev1.Pod) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		return 0
	}
	unit, missing := c.unit(g)
	enough := missing == nil || g.once
	for _, u := range unit {
		enough = enough && u.satisfied()
	}
	if !enough {
		return max(g.deadline.Sub(c.now()), 0) + permitSlack
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
			c.Metrics.Placed(u.placedIn)
		}
		u.accept()
		u.once, u.rejectedSince, u.retries, u.backoff.failures = true, time.Time{}, 0, 0
	}
	c.updateReservations()
	c.changed.Notify()
	return 0
}

// Bound notes that a member has its node in the API.
func (c *Cache) Bound(pod *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	if g == nil {
		return
	}
	if m := g.members[pod.UID]; m.stage == released {
		m.stage, m.node = bound, node
	}
	if g.completeSince.IsZero() {
		return
	}
	n := 0
	for _, m := range g.members {
		if m.stage >= bound {
			n++
		}
	}
	if n >= g.spec.MinMember {
		c.Metrics.Started(c.now().Sub(g.completeSince))
		g.completeSince = time.Time{}
	}
}

// WorthTrying reports whether a cycle of this pod could have another result than the
// last one: of a rejected gang only the leader's.
func (c *Cache) WorthTrying(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.byPod[pod.UID]
	return g == nil || g.reason == "" || g.leader == pod.UID || g.members[pod.UID].stage != pending || !c.waits(g.leader)
}

// SameGang reports whether two pods name one gang.
func (c *Cache) SameGang(one, other *corev1.Pod) bool {
	if one.Namespace != other.Namespace || !gang.Mentions(one) || !gang.Mentions(other) {
		return false
	}
	a, err := gang.Read(one, c.Domains)
	if err != nil {
		return false
	}
	b, _ := gang.Read(other, c.Domains)
	return a.Key == b.Key && a.Key != types.NamespacedName{}
}
