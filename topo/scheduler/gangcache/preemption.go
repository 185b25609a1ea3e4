package gangcache

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// usualGrace is the default grace period of a pod.
	usualGrace = 30 * time.Second
	// preemptionSlack is the time that pods may take to leave after their grace period.
	preemptionSlack = 90 * time.Second
)

// preemption has the pods that must leave before the members of planned gangs have their
// nodes. They are evicted once each member's node was tried without them: what planner
// does not know (volumes, affinity to other pods) may keep a member off, and the eviction would
// be in vain.
type preemption struct {
	leaving []*corev1.Pod
	evicted bool
}

// tried reports whether the nodes of all members of a gang, and of those that it runs with, were
// tried, and no pod was evicted yet.
func (c *Cache) tried(g *gangInfo) bool {
	if g.preemption == nil || g.preemption.evicted {
		return false
	}
	unit, _ := c.unit(g)
	return !slices.ContainsFunc(unit, func(u *gangInfo) bool {
		return u.preemption == g.preemption && u.any(func(m *member) bool { return m.stage == planned && !m.tried })
	})
}

// timeout returns how long reservations hold at least: zero if no pod must leave.
func (p *preemption) timeout() (longest time.Duration) {
	if p == nil {
		return 0
	}
	for _, pod := range p.leaving {
		grace := usualGrace
		if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
			grace = time.Duration(*seconds) * time.Second
		}
		longest = max(longest, grace+preemptionSlack)
	}
	return longest
}

// Preempt is for PostFilter: a member's node takes it once other pods have left. After this was
// called for all members, it returns the pods to evict, once. started reports that it has.
func (c *Cache) Preempt(member *corev1.Pod) (evict []*corev1.Pod, started bool) {
	m := c.lock(member)
	defer c.unlock()
	if m == nil || m.stage != planned || m.gang.preemption == nil {
		return nil, false
	}
	m.tried = true
	p := m.gang.preemption
	if !c.tried(m.gang) {
		return nil, p.evicted
	}
	p.evicted = true
	c.activatePlanned(m.gang, member) // All members are nominated for their nodes then.
	return p.leaving, true
}

// activatePlanned activates the planned members of a gang and of those that it runs with,
// except for the member that is tried.
func (c *Cache) activatePlanned(g *gangInfo, except *corev1.Pod) {
	unit, _ := c.unit(g)
	for _, u := range unit {
		for uid, m := range u.members {
			if m.stage == planned && uid != except.UID {
				c.effects.activate(m.Pod)
			}
		}
	}
}

// NotEvicted tries the eviction again in the next cycle of a member.
func (c *Cache) NotEvicted(member *corev1.Pod) {
	m := c.lock(member)
	defer c.unlock()
	if m != nil && m.gang.preemption != nil {
		m.gang.preemption.evicted = false
	}
}

// GangOf returns the gang of each pod that is in a gang, for preemption. Gangs that run
// together or not at all have one name, and are evicted together.
func (c *Cache) GangOf() map[types.UID]types.NamespacedName {
	c.mu.Lock()
	defer c.unlock()
	out := make(map[types.UID]types.NamespacedName, len(c.members))
	for _, g := range c.byKey {
		unit, _ := c.unit(g)
		for uid := range g.members {
			out[uid] = unit[0].key
		}
	}
	return out
}
