// Package gangcache knows every gang that labels, annotations or PodGroup objects
// describe, and what each holds.
//
// It owns the state machine of members (pending, planned, reserved, released,
// bound, done), reservations of nodes until their deadline, the leader of a rejected
// gang, the back-off of nodes, and the metrics of all that. All of it is behind one
// lock, which is never held while the framework is called: what the framework is to
// do is collected as Effects, which the controller takes and applies.
//
// Of a rejected gang one member, the leader, tries again when something changed; the
// others repeat its reason. A gang of thousands costs one plan.
package gangcache

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/queue"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// Options of a Cache.
type Options struct {
	Domains wellknown.Domains
	// Ignored are resources that count for nothing.
	Ignored []corev1.ResourceName
	// CrossNamespaceGroups lets gangs of several namespaces run together or not at all.
	CrossNamespaceGroups bool
	// Native leaves pods of native PodGroups (scheduling.k8s.io) to Kubernetes.
	Native bool
	// GPUs reads the device selectors of pods.
	GPUs *sgpu.Scheduler
	// Queue is for which gangs room is reserved in advance.
	Queue   queue.Policy
	Metrics *Metrics
}

// IsNative reports whether Kubernetes keeps a pod's gang together.
func (o *Options) IsNative(pod *corev1.Pod) bool {
	g := pod.Spec.SchedulingGroup
	return o.Native && g != nil && g.PodGroupName != nil
}

// NewMember is a pod as a member of a gang.
func (o *Options) NewMember(pod *corev1.Pod) planner.Member {
	// Annotations that contradict each other are rejected by PreFilter.
	selector, _ := o.GPUs.Selector(pod)
	class := fit.ClassOf(pod, selector, o.Ignored...)
	gpus := class.Amounts[o.GPUs.GPUs().In(class.Amounts)]
	return planner.Member{Pod: pod, Class: class, GPUs: int(gpus)}
}

// foreign is why a gang may not run with those that it lists.
func (o *Options) foreign(s *gang.Spec) error {
	for _, other := range s.Groups {
		if other.Namespace != s.Key.Namespace && !o.CrossNamespaceGroups {
			return fmt.Errorf("groups: podgroup %s is in another namespace, and crossNamespaceGroups is off", other)
		}
	}
	return nil
}

// Cache has the gangs. It is safe for concurrent use.
type Cache struct {
	Options
	// Changed has a value when there may be effects.
	Changed notify.Signal
	// Backoffs are those of gangs and of native PodGroups.
	Backoffs Backoffs

	mu      sync.Mutex
	gangs   gangs
	members map[types.UID]*member
	// blocked are pods of no gang that reservations kept from a node.
	blocked map[types.UID]*corev1.Pod
	// reservations are replaced, never changed: scheduling cycles read them without
	// the lock.
	reservations fit.Reservations
	effects      Effects
}

// New returns an empty cache.
func New(o Options) *Cache {
	return &Cache{
		Options: o, Changed: notify.New(), gangs: gangs{}, members: map[types.UID]*member{},
		blocked: map[types.UID]*corev1.Pod{}, effects: newEffects(),
	}
}

// Reservations are those of all gangs.
func (c *Cache) Reservations() fit.Reservations {
	c.mu.Lock()
	defer c.unlock()
	return c.reservations
}

// UpdatePod takes over what a pod is now.
func (c *Cache) UpdatePod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.unlock()
	previous := c.members[pod.UID]
	if previous == nil && (c.IsNative(pod) || !gang.Mentions(pod)) {
		return
	}
	m, changed := c.put(pod)
	if m == nil {
		m = previous
	}
	if m == nil {
		return
	}
	if changed {
		c.membersChanged(m.gang)
	}
	if g := m.gang; !g.completeSince.IsZero() && g.have(bound) >= g.spec.MinMember {
		c.Metrics.duration.Observe(time.Since(g.completeSince).Seconds())
		g.completeSince = time.Time{}
	}
}

// DeletePod forgets a pod.
func (c *Cache) DeletePod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.unlock()
	delete(c.blocked, pod.UID)
	if m := c.members[pod.UID]; m != nil {
		c.remove(m)
		c.membersChanged(m.gang)
	}
}

// SetPodGroup takes over a PodGroup object of an API group; err is what is wrong
// with it.
func (c *Cache) SetPodGroup(group string, spec *gang.Spec, err error) {
	c.mu.Lock()
	defer c.unlock()
	g := c.gangs.get(spec.Key)
	g.objects[group] = object{*spec, cmp.Or(err, c.foreign(spec))}
	if !spec.Created.IsZero() {
		g.born(spec.Created)
	}
	g.invalidate()
	c.membersChanged(g)
}

// DeletePodGroup forgets a PodGroup object.
func (c *Cache) DeletePodGroup(group string, key types.NamespacedName) {
	c.mu.Lock()
	defer c.unlock()
	if g := c.gangs[key]; g != nil {
		delete(g.objects, group)
		c.gangs.update(g)
		c.membersChanged(g)
	}
}

// NodeUpdated takes over what a node is now. A gang on its way to it that may not be there any
// longer gives back all that it holds: members may have waited for it for minutes, and no
// filter sees them again.
func (c *Cache) NodeUpdated(node *corev1.Node) {
	c.leave(node.Name, func(m *member) string { return m.resources.Class.Obstacle(node) })
	c.NodeChanged(node.Name)
}

// NodeDeleted is NodeUpdated for a node that is gone.
func (c *Cache) NodeDeleted(node string) {
	c.leave(node, func(*member) string { return "deleted" })
}

// leave releases the gangs with a member that has an obstacle on its node.
func (c *Cache) leave(node string, obstacle func(*member) string) {
	c.mu.Lock()
	defer c.unlock()
	for _, g := range c.gangs {
		if g.deadline.IsZero() {
			continue
		}
		for _, m := range g.members {
			if m.node != node || m.stage != planned && m.stage != reserved {
				continue
			}
			if why := obstacle(m); why != "" {
				c.release(g, fmt.Sprintf("member %s lost its place on node %s: %s", m.pod.Name, node, why))
				c.effects.retry[g.key] = true
				break
			}
		}
	}
}

// NodeChanged ends the back-off of a node that changed, or that a pod left.
func (c *Cache) NodeChanged(node string) {
	c.mu.Lock()
	defer c.unlock()
	for _, key := range c.Backoffs.forget(node) {
		c.effects.retry[key] = true
	}
}

// put takes over what a pod is now. The member is nil for a pod in no gang. changed
// reports that it is another one than before.
func (c *Cache) put(pod *corev1.Pod) (m *member, changed bool) {
	spec, err := gang.Read(pod, c.Domains)
	m = c.members[pod.UID]
	none := errors.Is(err, gang.ErrNoGang) || spec.Key.Name == ""
	if m != nil && (none || m.gang.key != spec.Key) {
		c.remove(m)
		m, changed = nil, true
	}
	if none {
		return nil, changed
	}
	var previous member
	if m == nil {
		m = &member{gang: c.gangs.get(spec.Key), resources: c.NewMember(pod)}
		m.gang.members[pod.UID], c.members[pod.UID] = m, m
		changed = true
	} else {
		previous = *m
	}
	m.gang.born(pod.CreationTimestamp.Time)
	m.pod, m.spec, m.err = pod, spec, cmp.Or(err, c.foreign(&spec))
	if !changed {
		changed = !reflect.DeepEqual(previous.spec, spec) || (previous.err == nil) != (m.err == nil) ||
			previous.live() != m.live()
	}
	if changed {
		m.gang.invalidate()
	}
	switch {
	case finished(pod):
		m.stage = done
		m.gang.once = m.gang.once || pod.Spec.NodeName != "" && m.gang.started()
	case pod.Spec.NodeName != "":
		m.stage, m.node, m.unbound = bound, pod.Spec.NodeName, false
		m.gang.once = m.gang.once || m.live()
	}
	return m, changed
}

// remove forgets a member.
func (c *Cache) remove(m *member) {
	delete(c.members, m.pod.UID)
	delete(m.gang.members, m.pod.UID)
	if g := m.gang; g.leader == m {
		g.elect(nil)
	}
	m.gang.preemption.tried(m.pod.UID)
	c.gangs.update(m.gang)
}

// membersChanged releases what a gang holds that is no longer complete, and tries
// the gang again.
func (c *Cache) membersChanged(g *gangInfo) {
	c.effects.retry[g.key] = true
	if g.deadline.IsZero() && g.advance.Start.IsZero() {
		return
	}
	reason := c.gangs.incomplete(g)
	if g.err != nil {
		reason = g.err.Error()
	}
	if reason != "" || c.gangs[g.key] != g {
		c.giveBack(g)
	}
	if g.deadline.IsZero() {
		return
	}
	if reason == "" {
		c.reservations = c.gangs.reservations(nil)
		return
	}
	c.release(g, reason)
}

// release takes back what a gang, and those that it runs with, have reserved or
// hold, unless it is being bound.
func (c *Cache) release(g *gangInfo, reason string) {
	unit, _ := c.gangs.unit(g)
	for _, g := range unit {
		for _, m := range g.members {
			if m.stage == reserved {
				c.effects.Reject[m.pod.UID] = m.gang.rejection(reason)
				m.stage, m.node = pending, ""
				c.effects.retryAll = true
			}
		}
		g.unplan()
		g.deadline, g.preemption = time.Time{}, nil
		c.reject(g, reason, nil)
	}
	c.reservations = c.gangs.reservations(nil)
}

// reject records why a gang has no nodes, and which member tries again.
func (c *Cache) reject(g *gangInfo, reason string, leader *member) {
	if g.rejectedSince.IsZero() {
		g.rejectedSince = time.Now()
	}
	if g.reason == "" {
		c.Metrics.rejections.Inc()
	}
	if now := time.Now(); g.reason == "" || kindOf(reason) != kindOf(g.reason) || now.Sub(g.reasonSince) >= reasonEvery {
		g.reason, g.reasonSince = reason, now
	}
	g.elect(leader)
}

// Snapshot is a gang outside the cache. Pods never change.
type Snapshot struct {
	Key  types.NamespacedName
	Pods []*corev1.Pod
	// ByLabels gangs are described by labels, and have no object of their user's.
	ByLabels bool
	// Certain gangs have a pod that is live and none that contradicts another: what
	// follows is known.
	Certain   bool
	MinMember int
	// Timeout is how long members that have a node wait for the others; 0 if the pods
	// have none.
	Timeout time.Duration
	// RejectedSince is zero for a gang that is not rejected, or waits for pods.
	RejectedSince time.Time
}

// Snapshots are all gangs that have pods.
func (c *Cache) Snapshots() []Snapshot {
	c.mu.Lock()
	defer c.unlock()
	all := make([]Snapshot, 0, len(c.gangs))
	for _, g := range c.gangs {
		if len(g.members) == 0 {
			continue
		}
		g.resolve()
		s := Snapshot{Key: g.key, MinMember: g.spec.MinMember}
		for _, m := range g.members {
			s.Pods = append(s.Pods, m.pod)
			s.ByLabels = s.ByLabels || len(g.objects) == 0 && gang.IsLabeled(m.pod)
			s.Certain = s.Certain || m.live() && g.err == nil && g.spec.MinMember > 0
			s.Timeout = max(s.Timeout, m.spec.Timeout)
		}
		if c.gangs.incomplete(g) == "" {
			s.RejectedSince = g.rejectedSince
		}
		all = append(all, s)
	}
	return all
}
