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
	c.effects.retryAll = true
}

// Effects are those that are due, each once.
func (c *Cache) Effects() Effects {
	c.mu.Lock()
	defer c.unlock()
	for key := range c.effects.retry {
		if g := c.byKey[key]; g != nil {
			unit, _ := c.unit(g)
			for _, u := range unit {
				c.activate(u)
			}
		}
	}
	if c.effects.retryAll {
		for _, g := range c.byKey {
			if g.rejected.reason != "" {
				c.activate(g)
			}
		}
		for _, pod := range c.blocked {
			c.effects.activate(pod)
		}
		clear(c.blocked)
	}
	out := c.effects
	c.effects = newEffects()
	return out
}

// retry has gangs tried again.
func (c *Cache) retry(gangs ...types.NamespacedName) {
	for _, key := range gangs {
		c.effects.retry[key] = true
	}
}

// activate adds the members that are worth a try: all that wait, but of a rejected
// gang only the leader, and those that do not have the reason yet.
func (c *Cache) activate(g *gangInfo) {
	if c.incomplete(g) != "" {
		return
	}
	if g.rejected.reason != "" && !g.rejected.leader.schedulable() {
		g.elect(nil)
	}
	for _, m := range g.members {
		if m.schedulable() && (!m.notified || !g.rejected.repeats(m)) {
			c.effects.activate(m.pod)
		}
	}
}
