// Package gangcache knows every gang that labels, annotations or PodGroup objects describe, and
// which nodes it holds.
//
// It owns the states of members (pending, planned, reserved, released, bound, done), the
// reservations of nodes until their deadline, the leader of a rejected gang, the back-off
// of nodes, and their metrics. One lock guards all of it and is never held while other packages
// run: a scheduling cycle takes a [Snapshot], planner makes a plan of it, and Commit takes
// the plan over. What the framework is to do is collected as [Effects], which the controller
// applies.
//
// One member of a rejected gang, the leader, tries again when something changed; the others
// repeat its reason. So a gang of thousands costs one plan.
package gangcache

import (
	"cmp"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// Options of a Cache.
type Options struct {
	Domains wellknown.Domains
	// Ignored are resources that do not count.
	Ignored []corev1.ResourceName
	// Native leaves pods of native PodGroups (scheduling.k8s.io) to Kubernetes.
	Native bool
	// HoldAfter is the time after which nodes are reserved for the first gang of the queue that waits; 0 for never.
	HoldAfter time.Duration
	// SparesPriority is the lowest priority of gangs that are repaired with spares.
	SparesPriority int32
	// GPUs reads the device selectors of pods.
	GPUs    *sgpu.Scheduler
	Metrics *Metrics
}

// IsNative reports whether Kubernetes keeps the members of a pod's gang together.
func (o *Options) IsNative(pod *corev1.Pod) bool {
	g := pod.Spec.SchedulingGroup
	return o.Native && g != nil && g.PodGroupName != nil
}

// NewMember returns a pod as a member of a gang.
func (o *Options) NewMember(pod *corev1.Pod) planner.Member {
	// PreFilter rejects annotations that contradict each other.
	selector, _ := o.GPUs.Selector(pod)
	// After a restart a pod may be bound already. It keeps the class that it had before: a class
	// for each node would make plans of large gangs slow.
	unbound := *pod
	unbound.Spec.NodeName = ""
	class := planner.ClassOf(&unbound, selector, o.Ignored...)
	gpus := class.Amounts[o.GPUs.GPUs().In(class.Amounts)]
	return planner.Member{Pod: pod, Class: class, GPUs: int(gpus)}
}

// Cache has the gangs. It is safe for concurrent use.
type Cache struct {
	Options
	// Changed has a value when there may be effects.
	Changed notify.Signal
	// Backoffs of gangs and of native PodGroups.
	Backoffs Backoffs

	// mu is held by the exported methods, and guards the fields below.
	mu      sync.Mutex
	byKey   map[types.NamespacedName]*gangInfo
	members map[types.UID]*member
	// blocked are pods of no gang that reservations kept off a node.
	blocked map[types.UID]*corev1.Pod
	// reservations are made by plans; withHold adds spares, the nodes for repair, and the reservations of held. They are
	// replaced, never changed: scheduling cycles read them without the lock.
	reservations, spares, withHold planner.Reservations
	held                           *hold
	effects                        Effects
}

// New returns an empty cache.
func New(o Options) *Cache {
	return &Cache{
		Options: o, Changed: notify.New(), Backoffs: Backoffs{gangs: map[types.NamespacedName]*backoff{}},
		byKey: map[types.NamespacedName]*gangInfo{}, members: map[types.UID]*member{},
		blocked: map[types.UID]*corev1.Pod{}, effects: newEffects(),
	}
}

// lock returns the member that a pod is; nil for a pod of no gang.
func (c *Cache) lock(pod *corev1.Pod) *member {
	c.mu.Lock()
	return c.members[pod.UID]
}

// unlock reports effects that are due.
func (c *Cache) unlock() {
	if c.effects.due() {
		c.Changed.Notify()
	}
	c.mu.Unlock()
}

// UpdatePod takes over a new or changed pod.
func (c *Cache) UpdatePod(pod *corev1.Pod) {
	previous := c.lock(pod)
	defer c.unlock()
	if previous == nil && (c.IsNative(pod) || !gang.Mentions(pod)) {
		return
	}
	m, changed := c.put(pod)
	if m = cmp.Or(m, previous); m == nil {
		return
	}
	if changed {
		c.changed(m.gang)
	}
	if g := m.gang; !g.completeSince.IsZero() && g.have(bound) >= g.spec.MinMember {
		c.Metrics.duration.Observe(time.Since(g.completeSince).Seconds())
		g.completeSince = time.Time{}
	}
}

// DeletePod forgets a pod, and ends the back-off of its node.
func (c *Cache) DeletePod(pod *corev1.Pod) {
	m := c.lock(pod)
	defer c.unlock()
	delete(c.blocked, pod.UID)
	c.retry(c.Backoffs.forget(pod.Spec.NodeName)...)
	if m != nil {
		c.remove(m)
	}
}

// SetPodGroup takes over a PodGroup object of an API group; err is why it is invalid. The spec is
// nil if the object was deleted.
func (c *Cache) SetPodGroup(group string, key types.NamespacedName, spec *gang.Spec, err error) {
	c.mu.Lock()
	defer c.unlock()
	g := c.get(key)
	if spec == nil {
		delete(g.objects, group)
	} else {
		g.objects[group] = object{*spec, err}
		g.born(spec.Created)
	}
	c.lost(g)
	c.changed(g)
}

// NodeChanged takes over a changed node, nil if it was deleted, and ends its back-off. A gang
// with a member that the node no longer takes releases all nodes: members may have waited for
// minutes, and no filter sees them again.
func (c *Cache) NodeChanged(name string, now *corev1.Node) {
	c.mu.Lock()
	defer c.unlock()
	c.leave(name, now)
	c.retry(c.Backoffs.forget(name)...)
}

// Reservations returns what plans reserve.
func (c *Cache) Reservations() planner.Reservations {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reservations
}

// ReservationsFor returns what a pod must leave free: for members with a node by a plan, and of gangs that run with
// fewer members than they need, only what plans reserve; for members of the gang that nodes are kept for, spares too,
// and for members of a gang that comes back, what is kept for another gang. Spares are not for gangs below
// SparesPriority.
func (c *Cache) ReservationsFor(pod *corev1.Pod, back bool) planner.Reservations {
	m := c.lock(pod)
	defer c.mu.Unlock()
	switch {
	case m == nil:
	case m.onItsWay(), c.inPart(m.gang) && m.priority() >= c.SparesPriority:
		return c.reservations
	case c.holds(m.gang), c.inPart(m.gang):
		return c.reservations.With(c.spares)
	case back && m.priority() >= c.SparesPriority:
		return c.reservations.With(c.heldNodes())
	}
	return c.withHold
}

// SetSpares sets what is reserved for the repair of running gangs.
func (c *Cache) SetSpares(spares planner.Reservations) {
	c.mu.Lock()
	defer c.unlock()
	for node := range c.spares {
		c.effects.retryAll = c.effects.retryAll || len(spares[node]) == 0
	}
	if c.effects.retryAll || len(spares) != len(c.spares) {
		c.spares = spares
		c.renew()
	}
}

// QueueKey is the place of a pod in the scheduler's queue. All pods of a gang have the same.
type QueueKey struct {
	Priority int32
	// Created is the creation time of the gang's first pod or its PodGroup.
	Created time.Time
	// Name orders gangs of one age; empty for a pod of no gang.
	Name string
}

// Compare is negative if k comes before another key.
func (k *QueueKey) Compare(o *QueueKey) int {
	return cmp.Or(cmp.Compare(o.Priority, k.Priority), k.Created.Compare(o.Created), cmp.Compare(k.Name, o.Name))
}

// QueueKey returns the key of a pod.
func (c *Cache) QueueKey(pod *corev1.Pod) QueueKey {
	m := c.lock(pod)
	defer c.unlock()
	if m != nil {
		return m.gang.queueKey(m.priority())
	}
	return QueueKey{Priority: schedulehelpers.PodPriority(pod), Created: pod.CreationTimestamp.Time}
}

// Gang describes a gang outside of the cache.
type Gang struct {
	Key  types.NamespacedName
	Pods []*corev1.Pod
	// ByLabels reports that labels describe the gang, and no PodGroup object of a user.
	ByLabels bool
	// Certain reports that the fields below are known: a pod is live, and none contradicts
	// another.
	Certain   bool
	MinMember int
	// Timeout is the time that members with a node wait for the others; 0 if the pods do not state
	// it.
	Timeout time.Duration
	// RejectedSince is zero for a gang that is not rejected or waits for pods.
	RejectedSince time.Time
	// Held is the number of nodes that are reserved for the gang, since it has waited for HoldAfter.
	Held int
}

// Gangs returns all gangs that have pods.
func (c *Cache) Gangs() []Gang {
	c.mu.Lock()
	defer c.unlock()
	all := make([]Gang, 0, len(c.byKey))
	for _, g := range c.byKey {
		if len(g.members) == 0 {
			continue
		}
		g.resolve()
		out := Gang{Key: g.key, MinMember: g.spec.MinMember}
		for _, m := range g.members {
			out.Pods = append(out.Pods, m.Pod)
			out.ByLabels = out.ByLabels || len(g.objects) == 0 && gang.IsLabeled(m.Pod)
			out.Certain = out.Certain || m.live() && g.err == nil && g.spec.MinMember > 0
			out.Timeout = max(out.Timeout, m.spec.Timeout)
		}
		if c.incomplete(g) == "" {
			out.RejectedSince = g.rejected.since
		}
		if c.held != nil && c.held.gangs[0] == g {
			out.Held = len(c.held.reservations)
		}
		all = append(all, out)
	}
	return all
}
