package gangcache

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/topo/gang"
)

const (
	// shareEvery is how often the members of a rejected gang get another reason: the
	// leader has it at once, and each change writes every pod.
	shareEvery = 30 * time.Second
	// activateEvery is how often planned members are activated that do not come. The
	// queue loses events: a pod that preempts a victim a second time, while the event
	// of its deletion is on the way, gets neither.
	activateEvery = 2 * time.Second
	// incompleteAfter is how long a gang may lack pods before an Event: operators
	// create a job's pods one after another.
	incompleteAfter = 30 * time.Second
	// maxEvents bounds the pods of a gang that get the same Event.
	maxEvents = 16
)

// Expire releases reservations after their deadline, tries gangs again when a node is
// avoided no longer, and shares the reasons of leaders.
func (c *Cache) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, g := range c.gangs {
		if expired := g.backoff.expire(now); g.share(now) || g.overdue(now) || expired {
			c.enqueue(g.key)
		}
		if g.deadline.IsZero() || now.Before(g.deadline) {
			continue
		}
		unit, _ := c.unit(g)
		c.Metrics.TimedOut()
		have, need := g.count(reserved), max(g.spec.MinMember, 1)
		c.release(unit, fmt.Sprintf("%d of %d had a node after %s", have, need, g.spec.Timeout))
		c.enqueueAll()
	}
}

// share reports whether the members of a rejected gang are to get the reason of now.
func (g *gangInfo) share(now time.Time) bool {
	if g.reason == "" || g.reason == g.sharedReason || now.Sub(g.sharedAt) < shareEvery {
		return false
	}
	first := g.sharedReason == ""
	g.sharedReason, g.sharedAt = g.reason, now
	if first {
		return false // They get it in their first cycle.
	}
	for _, m := range g.members {
		m.notified = m.pod.UID == g.leader
	}
	return true
}

// overdue reports whether planned members are to be activated again.
func (g *gangInfo) overdue(now time.Time) bool {
	if g.deadline.IsZero() || now.Sub(g.activated) < activateEvery {
		return false
	}
	g.activated = now
	for _, m := range g.members {
		if m.stage == planned {
			return true
		}
	}
	return false
}

// RejectStrays rejects pods that wait in Permit although their gang does not hold
// nodes: one that was on its way there when the gang released them.
func (c *Cache) RejectStrays(waiting []types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, uid := range waiting {
		if g := c.byPod[uid]; g != nil && g.members[uid].stage < reserved {
			c.effects.Reject[uid] = g.rejection("its gang released all nodes")
			c.changed.Notify()
		}
	}
}

// interrupted are the other gangs of at least a pod's priority that run with fewer
// members than they need, by name.
func (c *Cache) interrupted(but *gangInfo, pod *corev1.Pod) (all []*gangInfo) {
	for key, g := range c.running {
		m := g.first(func(m *member) bool { return m.schedulable() && m.stage == pending })
		if c.gangs[key] != g || m == nil {
			delete(c.running, key)
			continue
		}
		g.resolve()
		n := g.count(bound)
		lacks := n > 0 && n < g.spec.MinMember && g.spec.Policy != gang.OnlyWaiting && g.err == nil && g.deadline.IsZero()
		if g != but && lacks && schedulehelpers.PodPriority(m.pod) >= schedulehelpers.PodPriority(pod) {
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b *gangInfo) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return all
}

// Reasons of Events.
const (
	ReasonIncomplete        = "GangIncomplete"
	ReasonInvalidAnnotation = "GangInvalidAnnotation"
)

// Event is one to record about a pod.
type Event struct {
	Pod             *corev1.Pod
	Reason, Message string
}

// Events are warnings that no scheduling cycle gives: that a gang waits for pods,
// since its members are never tried, and which annotations are ignored. Each is
// returned once.
func (c *Cache) Events() (events []Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, g := range c.gangs {
		events = append(events, g.events(c.incomplete(g), now)...)
	}
	return events
}

func (g *gangInfo) events(incomplete string, now time.Time) (events []Event) {
	if incomplete == "" {
		g.incompleteSince, g.reportedReason = now, ""
	} else if incomplete != g.reportedReason && now.Sub(g.incompleteSince) >= incompleteAfter {
		g.reportedReason, g.rejectedSince = incomplete, time.Time{}
		for _, m := range g.ranked() {
			if m.schedulable() && len(events) < maxEvents {
				events = append(events, Event{m.pod, ReasonIncomplete, incomplete})
			}
		}
	}
	if g.reportedIgnored || len(g.spec.Ignored) == 0 {
		return events
	}
	// A member that has a node is reported only while it is young: an older one was
	// reported by the scheduler that ran before this one.
	if m := g.first(func(m *member) bool {
		return m.schedulable() || live(m.pod) && now.Sub(m.pod.CreationTimestamp.Time) < incompleteAfter
	}); m != nil {
		g.reportedIgnored = true
		// In one Event: a second one of the same reason about one pod counts as the first.
		events = append(events, Event{m.pod, ReasonInvalidAnnotation, strings.Join(g.spec.Ignored, "; ")})
	}
	return events
}
