package gangcache

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// activateEvery is the interval between activations of planned members. The queue loses events:
	// a pod that preempts a victim a second time while its deletion is reported gets neither
	// event.
	activateEvery = 2 * time.Second
	// incompleteAfter is the time for which a gang may lack pods before an Event, since operators
	// create the pods of a job one after another.
	incompleteAfter = 30 * time.Second
	// maxEvents bounds the pods of a gang that get the same Event.
	maxEvents = 16
)

// Expire releases reservations after their deadline, and tries gangs again after their back-off.
// It rejects pods that wait in Permit although their gang released its nodes while they were on
// their way there.
func (c *Cache) Expire(waiting []types.UID) {
	c.mu.Lock()
	defer c.unlock()
	for _, uid := range waiting {
		if m := c.members[uid]; m != nil && m.stage < reserved && c.effects.Reject[uid] == "" {
			c.effects.Reject[m.Pod.UID] = m.gang.rejection("its gang released all nodes")
		}
	}
	now := time.Now()
	c.expireHold(now)
	c.retry(c.Backoffs.end(func(_ string, until time.Time) bool { return now.After(until) })...)
	for _, g := range c.byKey {
		if g.overdue(now) {
			c.retry(g.key)
		}
		if g.deadline.IsZero() || now.Before(g.deadline) {
			continue
		}
		if c.inPart(g) {
			g.deadline = now.Add(g.spec.Timeout) // Without the room the gang would keep running in part.
			continue
		}
		c.Metrics.timeouts.Inc()
		c.release(g, fmt.Sprintf(
			"%d of %d had a node after %s", g.count(reserved), max(g.spec.MinMember, 1), g.spec.Timeout))
		c.effects.retryAll = true
	}
}

// overdue reports whether to activate planned members again.
func (g *gangInfo) overdue(now time.Time) bool {
	if g.deadline.IsZero() || now.Sub(g.activated) < activateEvery {
		return false
	}
	g.activated = now
	return g.have(planned) > g.have(reserved)
}

// Event holds an Event to record about a pod.
type Event struct {
	Pod             *corev1.Pod
	Reason, Message string
}

// Events returns warnings that no scheduling cycle gives, each once: that a gang waits for
// pods, since its members are never tried, and which annotations are ignored.
func (c *Cache) Events() (events []Event) {
	c.mu.Lock()
	defer c.unlock()
	now := time.Now()
	for _, g := range c.byKey {
		events = append(events, g.events(c.incomplete(g), now)...)
	}
	return events
}

func (g *gangInfo) events(incomplete string, now time.Time) (events []Event) {
	if incomplete == "" {
		g.incompleteSince, g.reportedReason = now, ""
	} else if incomplete != g.reportedReason && now.Sub(g.incompleteSince) >= incompleteAfter {
		g.reportedReason, g.rejected.since = incomplete, time.Time{}
		waiting := g.ranked((*member).schedulable)
		for _, m := range waiting[:min(len(waiting), maxEvents)] {
			events = append(events, Event{m.Pod, wellknown.EventGangIncomplete, incomplete})
		}
	}
	if g.reportedIgnored || len(g.spec.Ignored) == 0 {
		return events
	}
	// An older member that has a node was reported before the scheduler was restarted.
	if young := g.ranked(func(m *member) bool {
		return m.schedulable() || m.live() && now.Sub(m.Pod.CreationTimestamp.Time) < incompleteAfter
	}); len(young) > 0 {
		g.reportedIgnored = true
		// One Event, since a second one with the same reason about one pod counts as the first.
		events = append(events, Event{young[0].Pod, wellknown.EventGangInvalidAnnotation, strings.Join(g.spec.Ignored, "; ")})
	}
	return events
}

// Effects are due calls of the framework.
type Effects struct {
	// Allow are pods in Permit that go on, Reject those that go back to the queue, with the
	// reason.
	Allow  []types.UID
	Reject map[types.UID]string
	// Activate are pods to try now, by namespace/name.
	Activate map[string]*corev1.Pod

	// retry are gangs to try again; retryAll tries all rejected gangs and blocked pods.
	retry    map[types.NamespacedName]bool
	retryAll bool
}

func newEffects() Effects {
	return Effects{
		Reject: map[types.UID]string{}, Activate: map[string]*corev1.Pod{}, retry: map[types.NamespacedName]bool{},
	}
}

func (e *Effects) activate(pod *corev1.Pod) { e.Activate[pod.Namespace+"/"+pod.Name] = pod }

// due reports whether there are effects.
func (e *Effects) due() bool {
	return e.retryAll || len(e.Allow)+len(e.Reject)+len(e.Activate)+len(e.retry) > 0
}

// RetryAll tries all rejected gangs again.
func (c *Cache) RetryAll() {
	c.mu.Lock()
	defer c.unlock()
	c.effects.retryAll = true
}

// Effects returns the due effects, each once.
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

// retry tries gangs again.
func (c *Cache) retry(gangs ...types.NamespacedName) {
	for _, key := range gangs {
		c.effects.retry[key] = true
	}
}

// activate activates the waiting members of a gang: of a rejected gang the leader, and those that
// are not in the queue.
func (c *Cache) activate(g *gangInfo) {
	if c.incomplete(g) != "" {
		return
	}
	if g.rejected.reason != "" && !g.rejected.leader.schedulable() {
		g.elect(nil)
	}
	for _, m := range g.members {
		if m.schedulable() && (!m.admitted || !g.rejected.repeats(m)) {
			c.effects.activate(m.Pod)
		}
	}
}
