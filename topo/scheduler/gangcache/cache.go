// Package gangcache knows every gang that labels, annotations or PodGroup objects
// describe, and what each holds.
//
// It owns the state machine of members (pending, planned, reserved, released,
// bound, done), reservations of nodes until their deadline, the leader of a rejected
// gang, and the back-off of nodes. All of it is behind one lock, which is never held
// while the framework is called: what the framework is to do is collected as
// Effects, which the controller takes and applies.
//
// Of a rejected gang one member, the leader, tries again when something changed; the
// others repeat its reason. A gang of thousands costs one plan.
package gangcache

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/metrics"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// Options of a Cache.
type Options struct {
	Domains wellknown.Domains
	// Ignored are resources that count for nothing.
	Ignored []corev1.ResourceName
	// Scheduler is the name of this scheduler's profile.
	Scheduler string
	// Native leaves pods of native PodGroups (scheduling.k8s.io) to Kubernetes.
	Native bool
	// GPUs reads the device selectors of pods.
	GPUs    *sgpu.Scheduler
	Metrics *metrics.Metrics
}

// Cache has the gangs. It is safe for concurrent use.
type Cache struct {
	Options
	changed notify.Signal
	now     func() time.Time

	mu    sync.Mutex
	gangs map[types.NamespacedName]*gangInfo
	byPod map[types.UID]*gangInfo
	// running are gangs that had their nodes, and may lack members now.
	running map[types.NamespacedName]*gangInfo
	// native are the back-offs of native PodGroups.
	native map[types.NamespacedName]*backoff
	// blocked are pods of no gang that reservations kept from a node.
	blocked map[types.UID]*corev1.Pod
	// reservations are replaced, never changed: scheduling cycles read them without
	// the lock.
	reservations fit.Reservations

	effects Effects
	// retry are gangs to try again, and retryAll every rejected gang and every
	// blocked pod.
	retry    map[types.NamespacedName]bool
	retryAll bool
}

// Effects are calls of the framework that are due.
type Effects struct {
	// Allow are pods that wait in Permit and go on, Reject those that go back to the
	// queue, with the reason.
	Allow  []types.UID
	Reject map[types.UID]string
	// Activate are pods to try now, by namespace/name.
	Activate map[string]*corev1.Pod
}

func (e *Effects) activate(pod *corev1.Pod) { e.Activate[pod.Namespace+"/"+pod.Name] = pod }

func newEffects() Effects {
	return Effects{Reject: map[types.UID]string{}, Activate: map[string]*corev1.Pod{}}
}

// New returns an empty cache.
func New(o Options) *Cache {
	return &Cache{
		Options: o, changed: notify.New(), now: time.Now,
		gangs: map[types.NamespacedName]*gangInfo{}, byPod: map[types.UID]*gangInfo{},
		running: map[types.NamespacedName]*gangInfo{}, native: map[types.NamespacedName]*backoff{},
		blocked: map[types.UID]*corev1.Pod{}, retry: map[types.NamespacedName]bool{}, effects: newEffects(),
	}
}

// Changed has a value when there may be effects.
func (c *Cache) Changed() <-chan struct{} { return c.changed }

// IsNative reports whether Kubernetes keeps a pod's gang together.
func (c *Cache) IsNative(pod *corev1.Pod) bool {
	g := pod.Spec.SchedulingGroup
	return c.Native && g != nil && g.PodGroupName != nil
}

// Has reports whether a pod is in a gang.
func (c *Cache) Has(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byPod[pod.UID] != nil
}

// Reservations are those of all gangs.
func (c *Cache) Reservations() fit.Reservations {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reservations
}

// UpdatePod takes over what a pod is now.
func (c *Cache) UpdatePod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	previous := c.byPod[pod.UID]
	if previous == nil && (c.IsNative(pod) || !gang.Mentions(pod)) {
		return
	}
	g, changed := c.put(pod)
	if g == nil {
		g = previous
	}
	if g != nil && changed {
		c.membersChanged(g)
	}
}

// DeletePod forgets a pod.
func (c *Cache) DeletePod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.blocked, pod.UID)
	c.nodeChanged(pod.Spec.NodeName)
	g := c.remove(pod.UID)
	if g == nil {
		return
	}
	if g.leader == pod.UID {
		c.reject(g, g.reason, "")
	}
	c.membersChanged(g)
}

// SetPodGroup takes over a PodGroup object of an API group; err is what is wrong
// with it.
func (c *Cache) SetPodGroup(group string, spec *gang.Spec, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gang(spec.Key)
	if g.objects == nil {
		g.objects = map[string]object{}
	}
	g.objects[group] = object{*spec, err}
	g.invalidate()
	c.membersChanged(g)
}

// DeletePodGroup forgets a PodGroup object.
func (c *Cache) DeletePodGroup(group string, key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gangs[key]
	if g == nil {
		return
	}
	delete(g.objects, group)
	g.invalidate()
	c.drop(g)
	c.membersChanged(g)
}

// NodeChanged ends the back-off of a node that changed, or that a pod left.
func (c *Cache) NodeChanged(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodeChanged(node)
}

func (c *Cache) nodeChanged(node string) {
	for _, b := range c.native {
		b.forget(node)
	}
	for _, g := range c.gangs {
		if g.backoff.forget(node) {
			c.enqueue(g.key)
		}
	}
}

// RetryAll tries every rejected gang again.
func (c *Cache) RetryAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueueAll()
}

func (c *Cache) enqueue(key types.NamespacedName) {
	c.retry[key] = true
	c.changed.Notify()
}

func (c *Cache) enqueueAll() {
	c.retryAll = true
	c.changed.Notify()
}

// put takes over what a pod is now. The gang is nil for a pod in none. changed
// reports that it is another member than before.
func (c *Cache) put(pod *corev1.Pod) (g *gangInfo, changed bool) {
	spec, err := gang.Read(pod, c.Domains)
	previous := c.byPod[pod.UID]
	if errors.Is(err, gang.ErrNoGang) || spec.Key.Name == "" {
		c.remove(pod.UID)
		return nil, previous != nil
	}
	if previous != nil && previous.key != spec.Key {
		c.remove(pod.UID)
	}
	g = c.gang(spec.Key)
	m := g.members[pod.UID]
	if m == nil {
		m, changed = &member{resources: c.NewMember(pod)}, true
		g.members[pod.UID] = m
		c.byPod[pod.UID] = g
	} else {
		changed = !reflect.DeepEqual(m.spec, spec) || (m.err == nil) != (err == nil) || live(m.pod) != live(pod)
	}
	if changed {
		g.invalidate()
	}
	m.pod, m.spec, m.err = pod, spec, err
	switch {
	case finished(pod):
		m.stage = done
	case pod.Spec.NodeName != "":
		m.stage, m.node = bound, pod.Spec.NodeName
		g.once = true
	}
	if g.once {
		c.running[g.key] = g
	}
	return g, changed
}

// NewMember is a pod as a member of a gang.
func (c *Cache) NewMember(pod *corev1.Pod) planner.Member {
	// Annotations that contradict each other are rejected by PreFilter.
	selector, _ := c.GPUs.Selector(pod)
	class := fit.ClassOf(pod, selector, c.Ignored...)
	return planner.Member{Pod: pod, Class: class, GPUs: int(class.Amount(corev1.ResourceName(c.Domains.GPUResource())))}
}

// gang is the one of a name, which is created if it is missing.
func (c *Cache) gang(key types.NamespacedName) *gangInfo {
	g := c.gangs[key]
	if g == nil {
		g = &gangInfo{key: key, members: map[types.UID]*member{}, outdated: true, incompleteSince: c.now()}
		c.gangs[key] = g
	}
	return g
}

// remove forgets a pod, and returns the gang that it was in.
func (c *Cache) remove(uid types.UID) *gangInfo {
	g := c.byPod[uid]
	if g == nil {
		return nil
	}
	delete(c.byPod, uid)
	delete(g.members, uid)
	g.invalidate()
	c.drop(g)
	return g
}

// drop forgets a gang without members and objects.
func (c *Cache) drop(g *gangInfo) {
	if len(g.members) == 0 && len(g.objects) == 0 {
		delete(c.gangs, g.key)
	}
}

// membersChanged releases what a gang holds that is no longer complete, and tries
// the gang again.
func (c *Cache) membersChanged(g *gangInfo) {
	c.enqueue(g.key)
	if g.deadline.IsZero() {
		return
	}
	reason := c.incomplete(g)
	if g.err != nil {
		reason = g.err.Error()
	}
	if reason == "" {
		c.updateReservations()
		return
	}
	unit, _ := c.unit(g)
	c.release(unit, reason)
}

// unit is a gang and those that it runs with or not at all. missing is the first of
// them that does not exist.
func (c *Cache) unit(g *gangInfo) (unit []*gangInfo, missing *types.NamespacedName) {
	g.resolve()
	if g.spec.Alone() {
		return []*gangInfo{g}, nil
	}
	for i := range g.spec.Groups {
		other := c.gangs[g.spec.Groups[i]]
		if other == nil {
			if missing == nil {
				missing = &g.spec.Groups[i]
			}
			continue
		}
		other.resolve()
		unit = append(unit, other)
	}
	return unit, missing
}

// incomplete is what a gang, or one that it runs with, waits for: empty if it has
// the pods that it needs, or a fault, which the scheduling cycle rejects.
func (c *Cache) incomplete(g *gangInfo) string {
	unit, missing := c.unit(g)
	if g.err != nil || g.doneWith() {
		return ""
	}
	if missing != nil {
		return fmt.Sprintf("podgroup %s waits for podgroup %s of its groups: there is none", g.key.Name, missing)
	}
	for _, u := range unit {
		if u.err != nil || u.doneWith() {
			continue
		}
		switch n := u.count(pending); {
		case u.spec.MinMember == 0:
			return fmt.Sprintf("podgroup %s has no min-available, and there is no PodGroup object with minMember", u.key.Name)
		case n < u.spec.MinMember:
			return fmt.Sprintf("podgroup %s waits for pods: %d of %d exist", u.key.Name, n, u.spec.MinMember)
		}
	}
	return ""
}

// updateReservations collects what plans reserve. A member that is being bound is
// on its node already.
func (c *Cache) updateReservations() {
	out := fit.Reservations{}
	for _, g := range c.gangs {
		if g.deadline.IsZero() {
			continue
		}
		open := false
		for uid, m := range g.members {
			if m.stage == planned || m.stage == reserved {
				out[m.node] = append(out[m.node], fit.Reservation{
					UID: uid, Priority: schedulehelpers.PodPriority(m.pod), Amounts: m.resources.Class.Amounts,
				})
				open = true
			}
		}
		if !open {
			g.deadline = time.Time{}
		}
	}
	c.reservations = out
}

// release takes back what the gangs of a unit have reserved or hold, unless it is
// being bound.
func (c *Cache) release(unit []*gangInfo, reason string) {
	for _, g := range unit {
		for uid, m := range g.members {
			if m.stage == reserved {
				c.effects.Reject[uid] = g.rejection(reason)
				m.stage, m.node = pending, ""
				c.enqueueAll()
			}
		}
		g.unplan()
		g.deadline, g.preempting = time.Time{}, false
		c.reject(g, reason, "")
	}
	c.updateReservations()
	c.changed.Notify()
}

func (g *gangInfo) rejection(reason string) string {
	return fmt.Sprintf("rejected by podgroup %s: %s", g.key.Name, reason)
}

// reject records why a gang has no nodes, and which member tries again: the first
// that waits, unless a leader is given.
func (c *Cache) reject(g *gangInfo, reason string, leader types.UID) {
	c.countRejection(g, reason)
	g.reason, g.leader = reason, leader
	if m := g.members[leader]; m != nil {
		m.notified = true
	} else if m := g.first((*member).schedulable); m != nil {
		g.leader = m.pod.UID
	}
}

func (c *Cache) countRejection(g *gangInfo, reason string) {
	if reason == "" {
		return
	}
	if g.rejectedSince.IsZero() {
		g.rejectedSince = c.now()
	}
	if g.reason == "" {
		c.Metrics.Rejected()
	}
}

// accept ends the rejection of a gang.
func (g *gangInfo) accept() { g.reason, g.leader = "", "" }

// waits reports whether a pod waits for the scheduler.
func (c *Cache) waits(uid types.UID) bool {
	g := c.byPod[uid]
	return g != nil && g.members[uid].schedulable()
}

// Effects are those that are due, each once.
func (c *Cache) Effects() Effects {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.effects
	for key := range c.retry {
		if g := c.gangs[key]; g != nil {
			unit, _ := c.unit(g)
			for _, u := range unit {
				c.activate(u, &out)
			}
		}
	}
	if c.retryAll {
		for _, g := range c.gangs {
			if g.reason != "" {
				c.activate(g, &out)
			}
		}
		for _, pod := range c.blocked {
			out.activate(pod)
		}
		clear(c.blocked)
	}
	clear(c.retry)
	c.retryAll, c.effects = false, newEffects()
	return out
}

// activate adds the members that are worth a try: all that wait, but of a rejected
// gang only the leader, and those that do not have the reason yet.
func (c *Cache) activate(g *gangInfo, to *Effects) {
	if c.incomplete(g) != "" {
		return
	}
	if g.reason != "" && !c.waits(g.leader) {
		c.reject(g, g.reason, "")
	}
	for uid, m := range g.members {
		if !m.schedulable() || m.stage == pending && g.reason != "" && uid != g.leader && m.notified {
			continue
		}
		to.activate(m.pod)
	}
}

// Snapshot is a gang outside the cache. Pods never change.
type Snapshot struct {
	Key  types.NamespacedName
	Pods []*corev1.Pod
	// Own reports that a pod of it is for this scheduler.
	Own bool
	// Live reports that a pod is neither finished nor terminating, Invalid that the
	// members contradict each other, HasObject that a user made a PodGroup object.
	Live, Invalid, HasObject bool
	MinMember                int
	Timeout                  time.Duration
	// RejectedSince is zero for a gang that is not rejected, or waits for pods.
	RejectedSince time.Time
}

// Snapshots are all gangs that have pods.
func (c *Cache) Snapshots() []Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Snapshot, 0, len(c.gangs))
	for g := range maps.Values(c.gangs) {
		if len(g.members) == 0 {
			continue
		}
		g.resolve()
		s := Snapshot{
			Key: g.key, Invalid: g.err != nil, HasObject: len(g.objects) > 0, MinMember: g.spec.MinMember,
			Pods: make([]*corev1.Pod, 0, len(g.members)),
		}
		for _, m := range g.members {
			s.Pods = append(s.Pods, m.pod)
			s.Own = s.Own || m.pod.Spec.SchedulerName == c.Scheduler
			s.Live = s.Live || live(m.pod)
			s.Timeout = max(s.Timeout, m.spec.Timeout)
		}
		if !g.rejectedSince.IsZero() && c.incomplete(g) == "" {
			s.RejectedSince = g.rejectedSince
		}
		all = append(all, s)
	}
	return all
}
