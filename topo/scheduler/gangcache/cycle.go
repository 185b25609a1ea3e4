package gangcache

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// This file has the steps of a scheduling cycle but PreFilter, which is in place.go.

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
