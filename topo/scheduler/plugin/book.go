package plugin

import (
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// book is who is in which gang, and who was promised what. Its lock is never
// held while the framework is called: queue and book would wait for each other.
type book struct {
	domains wellknown.Domains
	ignored []corev1.ResourceName
	now     func() time.Time
	meters  *meters
	// choose tells a new member's class which GPUs it accepts; nil tells nothing.
	choose func(*corev1.Pod, *fit.Class)

	mu    sync.Mutex
	gangs map[types.NamespacedName]*entry
	of    map[types.UID]*entry
	// begun are gangs of which members have a node and others may wait.
	begun map[types.NamespacedName]*entry
	// promises are made anew when they change; never changed.
	promises fit.Promises
}

func newBook(d wellknown.Domains, ignored []corev1.ResourceName) *book {
	return &book{
		domains: d, ignored: ignored, now: time.Now, meters: newMeters(),
		gangs: map[types.NamespacedName]*entry{}, of: map[types.UID]*entry{}, begun: map[types.NamespacedName]*entry{},
	}
}

// put takes over what a pod is now. It is nil for a pod in no gang. changed
// tells that something was said that had not been said before.
func (b *book) put(pod *corev1.Pod) (e *entry, changed bool) {
	spec, fault := gang.Read(pod, b.domains)
	had := b.of[pod.UID]
	if errors.Is(fault, gang.ErrNoGang) || spec.Key.Name == "" {
		if had != nil {
			b.remove(pod.UID)
		}
		return nil, had != nil
	}
	if had != nil && had.key != spec.Key {
		b.remove(pod.UID)
		had = nil
	}
	e = b.entry(spec.Key)
	m := e.members[pod.UID]
	if m == nil {
		m = &member{class: b.classOf(pod)}
		m.gpus = int(m.class.Amount(corev1.ResourceName(b.domains.GPUResource())))
		e.members[pod.UID] = m
		b.of[pod.UID] = e
		changed = true
	}
	if changed || !sameSpec(&m.spec, &spec) || (m.fault == nil) != (fault == nil) || m.live() != alive(pod) {
		changed, e.stale = true, true
	}
	m.pod, m.spec, m.fault = pod, spec, fault
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		m.stage = done
	case pod.Spec.NodeName != "":
		m.stage, m.node = bound, pod.Spec.NodeName
		e.once = true
	}
	b.begin(e)
	return e, changed
}

func alive(pod *corev1.Pod) bool {
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return false
	}
	return len(pod.Spec.SchedulingGates) == 0 || pod.Spec.NodeName != ""
}

func sameSpec(a, b *gang.Spec) bool {
	return a.MinMember == b.MinMember && a.Policy == b.Policy && a.Timeout == b.Timeout && a.GroupSize == b.GroupSize &&
		a.Required == b.Required && a.Preferred == b.Preferred && a.WithoutMap == b.WithoutMap &&
		slices.Equal(a.Groups, b.Groups)
}

// entry is the gang of a name, which comes to be.
func (b *book) entry(key types.NamespacedName) *entry {
	e := b.gangs[key]
	if e == nil {
		e = &entry{key: key, members: map[types.UID]*member{}, stale: true, since: b.now(), avoid: map[string]time.Time{}}
		b.gangs[key] = e
	}
	return e
}

// remove forgets a pod.
func (b *book) remove(uid types.UID) *entry {
	e := b.of[uid]
	if e == nil {
		return nil
	}
	delete(b.of, uid)
	delete(e.members, uid)
	e.stale = true
	if len(e.members) == 0 && e.object == nil {
		delete(b.gangs, e.key)
	}
	return e
}

// promise makes the promises anew.
func (b *book) promise() {
	made := fit.Promises{}
	for _, e := range b.gangs {
		if e.deadline.IsZero() {
			continue
		}
		open := false
		for uid, m := range e.members {
			// Who is being bound is on the node already.
			if m.stage == planned || m.stage == reserved {
				made[m.node] = append(made[m.node], fit.Promise{UID: uid, Priority: priorityOf(m.pod), Amounts: m.class.Amounts})
				open = true
			}
		}
		if !open {
			e.deadline = time.Time{}
		}
	}
	b.promises = made
}

// release takes back what the gangs of a unit were promised or hold, unless
// they are being bound. The pods that wait in Permit are for the caller to
// reject, without the lock.
func (b *book) release(unit []*entry, why string) (waiting []types.UID) {
	for _, e := range unit {
		for uid, m := range e.members {
			switch m.stage {
			case reserved:
				waiting = append(waiting, uid)
				m.stage, m.node = pending, ""
			case planned:
				m.stage, m.node = pending, ""
			default:
			}
		}
		e.deadline, e.preempting = time.Time{}, false
		b.refuse(e, why, "")
	}
	b.promise()
	return waiting
}

// refuse notes why a gang has no nodes, and who tries again.
func (b *book) refuse(e *entry, why string, leader types.UID) {
	b.refused(e, why)
	e.refusal, e.leader = why, leader
	if m := e.members[leader]; m != nil {
		m.told = true
		return
	}
	for _, m := range ordered(e) {
		if m.waits() {
			e.leader = m.pod.UID
			return
		}
	}
}

// classOf is what a member asks for.
func (b *book) classOf(pod *corev1.Pod) *fit.Class {
	class := fit.ClassOf(pod, b.ignored...)
	if b.choose != nil {
		b.choose(pod, class)
	}
	return class
}
