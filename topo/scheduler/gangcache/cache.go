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
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
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
	// ReserveAfter is how long a gang waits before room is reserved for it in advance; zero is
	// for ever.
	ReserveAfter time.Duration
	Metrics      *Metrics
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
	// One that is bound already, as after a restart, is of the class that it had before: a class
	// for each node would make a plan of a gang of thousands one of thousands of classes.
	unbound := *pod
	unbound.Spec.NodeName = ""
	class := fit.ClassOf(&unbound, selector, o.Ignored...)
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
	// Changed has a value when there may be effects.
	Changed notify.Signal
	// Backoffs are those of gangs and of native PodGroups.
	Backoffs Backoffs

	// mu is held by the exported methods, and guards what follows but Options. blocked are
	// pods of no gang that reservations kept from a node.
	mu sync.Mutex
	gangs
	blocked map[types.UID]*corev1.Pod
}

// New returns an empty cache.
func New(o Options) *Cache {
	return &Cache{
		Changed: notify.New(), Backoffs: Backoffs{gangs: map[types.NamespacedName]*backoff{}},
		gangs: gangs{
			Options: o, byKey: map[types.NamespacedName]*gangInfo{}, members: map[types.UID]*member{}, effects: newEffects(),
		},
		blocked: map[types.UID]*corev1.Pod{},
	}
}

// lock is for what happens to a pod, and returns the member that it is; nil for one of no gang.
func (c *Cache) lock(pod *corev1.Pod) *member {
	c.mu.Lock()
	return c.of(pod)
}

// unlock reports effects that are due.
func (c *Cache) unlock() {
	if c.effects.due() {
		c.Changed.Notify()
	}
	c.mu.Unlock()
}

// UpdatePod takes over what a pod is now.
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

// DeletePod forgets a pod, which ends the back-off of its node.
func (c *Cache) DeletePod(pod *corev1.Pod) {
	m := c.lock(pod)
	defer c.unlock()
	delete(c.blocked, pod.UID)
	c.retry(c.Backoffs.forget(pod.Spec.NodeName)...)
	if m != nil {
		c.remove(m)
		c.changed(m.gang)
	}
}

// SetPodGroup takes over a PodGroup object of an API group; err is what is wrong
// with it.
func (c *Cache) SetPodGroup(group string, spec *gang.Spec, err error) {
	c.mu.Lock()
	defer c.unlock()
	g := c.get(spec.Key)
	g.objects[group] = object{*spec, cmp.Or(err, c.foreign(spec))}
	if !spec.Created.IsZero() {
		g.born(spec.Created)
	}
	g.invalidate()
	c.changed(g)
}

// DeletePodGroup forgets a PodGroup object.
func (c *Cache) DeletePodGroup(group string, key types.NamespacedName) {
	c.mu.Lock()
	defer c.unlock()
	if g := c.byKey[key]; g != nil {
		delete(g.objects, group)
		c.lost(g)
		c.changed(g)
	}
}

// NodeChanged takes over what a node is now, nil if it is gone, and ends its back-off. A gang on
// its way to it that may not be there any longer gives back all that it holds: members may have
// waited for it for minutes, and no filter sees them again.
func (c *Cache) NodeChanged(name string, now *corev1.Node) {
	c.mu.Lock()
	defer c.unlock()
	c.leave(name, now)
	c.retry(c.Backoffs.forget(name)...)
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
	all := make([]Snapshot, 0, len(c.byKey))
	for _, g := range c.byKey {
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
		if c.incomplete(g) == "" {
			s.RejectedSince = g.rejected.since
		}
		all = append(all, s)
	}
	return all
}
