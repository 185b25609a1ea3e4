package gangcache

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

const (
	// holdEvery is the time between two searches for the nodes of the hold, since other nodes become idle, and
	// holdRetry the time until the next search for a gang that could not start even on an empty cluster.
	holdEvery, holdRetry = 10 * time.Second, 5 * time.Minute
	// holdAtMost is the longest time of a hold: what runs on its nodes may not end for weeks.
	holdAtMost = 48 * time.Hour
)

// hold keeps nodes for the first gang of the queue that has waited for HoldAfter and could start on an empty cluster.
// There is one at most, so that no two gangs keep nodes from each other.
type hold struct {
	// gangs are the gang and those that it runs with.
	gangs        []*gangInfo
	key          QueueKey
	waiting      *planner.Waiting
	reservations planner.Reservations
}

// holds reports whether the hold is for a gang.
func (c *Cache) holds(g *gangInfo) bool { return c.held != nil && slices.Contains(c.held.gangs, g) }

// waitsSince returns the creation of the oldest member that waits, which a restart of the scheduler does not change;
// zero if none waits.
func (g *gangInfo) waitsSince() (since time.Time) {
	for _, m := range g.members {
		if created := m.Pod.CreationTimestamp.Time; m.waits() && (since.IsZero() || created.Before(since)) {
			since = created
		}
	}
	return since
}

// queueKey returns the gang's place in the queue.
func (g *gangInfo) queueKey(priority int32) QueueKey {
	return QueueKey{Priority: priority, Created: g.created, Name: g.key.String()}
}

// mayHold reports whether nodes are to be searched for a gang now.
func (c *Cache) mayHold(m *member, now time.Time) bool {
	g := m.gang
	if c.HoldAfter <= 0 || now.Before(g.holdAgain) || g.satisfied() {
		return false
	}
	waits, key := now.Sub(g.waitsSince()), g.queueKey(m.priority())
	return waits >= c.HoldAfter && waits < c.HoldAfter+holdAtMost &&
		(c.held == nil || c.holds(g) || key.Compare(&c.held.key) < 0)
}

// Waiting returns the gang of a pod that found no room, if nodes are to be searched for it now; else nil.
func (c *Cache) Waiting(pod *corev1.Pod) *planner.Waiting {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil || !c.mayHold(m, time.Now()) {
		return nil
	}
	return &planner.Waiting{Gang: m.gang.key, For: c.HoldAfter}
}

// Hold takes over what is to be reserved for a unit of a snapshot: nothing if it could not start on an empty cluster.
// It reports whether the hold is new.
func (c *Cache) Hold(
	pod *corev1.Pod, unit []planner.Gang, waiting *planner.Waiting, r planner.Reservations,
) (added bool) {
	m := c.lock(pod)
	defer c.unlock()
	if m == nil {
		return false
	}
	h := &hold{key: m.gang.queueKey(m.priority()), waiting: waiting, reservations: r}
	for i := range unit {
		g := c.byKey[unit[i].Key]
		if g == nil || g.revision != unit[i].Revision {
			return false
		}
		h.gangs = append(h.gangs, g)
	}
	g := m.gang
	g.holdAgain = time.Now().Add(holdEvery)
	if len(r) == 0 {
		g.holdAgain = time.Now().Add(holdRetry)
		c.endHold(g)
		return false
	}
	added = !c.holds(g)
	for node := range c.heldNodes() {
		c.effects.retryAll = c.effects.retryAll || len(r[node]) == 0
	}
	c.held = h
	c.renew()
	return added
}

// heldNodes returns the reservations of the hold.
func (c *Cache) heldNodes() planner.Reservations {
	if c.held == nil {
		return nil
	}
	return c.held.reservations
}

// endHold ends the hold if it is for a gang.
func (c *Cache) endHold(g *gangInfo) {
	if c.holds(g) {
		c.held, c.effects.retryAll = nil, true
		c.renew()
	}
}

// expireHold ends a hold that is too old, and tries a gang again whose nodes are to be searched.
func (c *Cache) expireHold(now time.Time) {
	if c.held != nil && now.Sub(c.held.gangs[0].waitsSince()) >= c.HoldAfter+holdAtMost {
		c.endHold(c.held.gangs[0])
	}
	for _, g := range c.byKey {
		m := g.rejected.leader
		if m.schedulable() && now.Sub(g.activated) >= holdEvery && c.mayHold(m, now) {
			g.activated = now
			c.retry(g.key)
		}
	}
}

// heldFor describes what is reserved for a member's gang, or for one that comes first.
func (c *Cache) heldFor(m *member) string {
	switch {
	case c.held == nil || m.priority() > c.held.key.Priority:
		return ""
	case c.holds(m.gang):
		return fmt.Sprintf("; %d nodes are reserved for it", len(c.held.reservations))
	}
	return fmt.Sprintf("; %d nodes are reserved for %s", len(c.held.reservations), c.held.waiting)
}
