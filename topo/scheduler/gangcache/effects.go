package gangcache

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Effects are calls of the framework that are due.
type Effects struct {
	// Allow are pods that wait in Permit and go on, Reject those that go back to the
	// queue, with the reason.
	Allow  []types.UID
	Reject map[types.UID]string
	// Activate are pods to try now, by namespace/name.
	Activate map[string]*corev1.Pod

	// retry are gangs to try again, and retryAll every rejected gang and every
	// blocked pod.
	retry    map[types.NamespacedName]bool
	retryAll bool
}

func newEffects() Effects {
	return Effects{
		Reject: map[types.UID]string{}, Activate: map[string]*corev1.Pod{}, retry: map[types.NamespacedName]bool{},
	}
}

func (e *Effects) activate(pod *corev1.Pod) { e.Activate[pod.Namespace+"/"+pod.Name] = pod }

// due reports whether there are any.
func (e *Effects) due() bool {
	return e.retryAll || len(e.Allow)+len(e.Reject)+len(e.Activate)+len(e.retry) > 0
}

// RetryAll tries every rejected gang again.
func (c *Cache) RetryAll() {
	c.mu.Lock()
	defer c.unlock()
	c.gangs.effects.retryAll = true
}

// Effects are those that are due, each once.
func (c *Cache) Effects() Effects {
	c.mu.Lock()
	defer c.unlock()
	for key := range c.gangs.effects.retry {
		if g := c.gangs.byKey[key]; g != nil {
			unit, _ := c.gangs.unit(g)
			for _, u := range unit {
				c.gangs.activate(u)
			}
		}
	}
	if c.gangs.effects.retryAll {
		for _, g := range c.gangs.byKey {
			if g.rejected.reason != "" {
				c.gangs.activate(g)
			}
		}
		for _, pod := range c.blocked {
			c.gangs.effects.activate(pod)
		}
		clear(c.blocked)
	}
	out := c.gangs.effects
	c.gangs.effects = newEffects()
	return out
}

// retry has gangs tried again.
func (all *gangs) retry(gangs ...types.NamespacedName) {
	for _, key := range gangs {
		all.effects.retry[key] = true
	}
}

// activate adds the members that are worth a try: all that wait, but of a rejected
// gang only the leader, and those that do not have the reason yet.
func (all *gangs) activate(g *gangInfo) {
	if all.incomplete(g) != "" {
		return
	}
	if g.rejected.reason != "" && !g.rejected.leader.schedulable() {
		g.elect(nil)
	}
	for _, m := range g.members {
		if m.schedulable() && (!m.notified || !g.rejected.repeats(m)) {
			all.effects.activate(m.pod)
		}
	}
}
