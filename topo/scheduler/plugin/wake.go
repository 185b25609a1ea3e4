package plugin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// tendEvery is how often deadlines are looked at.
const tendEvery = 500 * time.Millisecond

// wake asks for a gang to be tried again; the empty name is every gang that was
// refused, and every pod that promises kept away. It never waits.
func (p *Plugin) wake(key types.NamespacedName) {
	p.mu.Lock()
	p.woken[key] = true
	p.mu.Unlock()
	select {
	case p.wakes <- struct{}{}:
	default:
	}
}

// tend does what is to be done beside scheduling, until the context ends.
func (p *Plugin) tend(ctx context.Context) {
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	_, changed := p.source.Current()
	fresh := p.fresh()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wakes:
			p.rouse()
		case <-ticker.C:
			// A gang that may do without a map waits no longer for its level.
			if fresh && !p.fresh() {
				fresh = false
				p.wake(types.NamespacedName{})
			}
			p.expire()
			p.sweep()
			p.inquire(time.Now())
			if p.leading() {
				p.notice()
			}
		case <-changed:
			_, changed = p.source.Current()
			fresh = p.fresh()
			p.wake(types.NamespacedName{})
		}
	}
}

// fresh tells whether there is a map to go by.
func (p *Plugin) fresh() bool {
	m, _ := p.source.Current()
	return p.source.Fresh(m, time.Now())
}

// spreadEvery is how often the members of a refused gang are told another
// reason: the leader hears it at once, and each telling writes every pod.
const spreadEvery = 30 * time.Second

// tell lets all members of a refused gang be told the reason of now.
func (e *entry) tell(now time.Time) (others bool) {
	if e.refusal == "" || e.refusal == e.spread || now.Sub(e.spreadAt) < spreadEvery {
		return false
	}
	first := e.spread == ""
	e.spread, e.spreadAt = e.refusal, now
	if first {
		return false // They are told as they come.
	}
	for _, m := range e.members {
		m.told = m.pod.UID == e.leader
	}
	return true
}

// nudgeEvery is how often members are called that have a place and do not take
// it. The queue loses events: a pod that preempts a victim a second time, while
// the news of its death is on the way, is told of neither.
const nudgeEvery = 2 * time.Second

func (e *entry) nudge(now time.Time) bool {
	if e.deadline.IsZero() || now.Sub(e.nudged) < nudgeEvery {
		return false
	}
	e.nudged = now
	for _, m := range e.members {
		if m.stage == planned {
			return true
		}
	}
	return false
}

// rouse activates the pods of gangs that were woken.
func (p *Plugin) rouse() {
	p.mu.Lock()
	woken, blocked := p.woken, p.blocked
	p.woken = map[types.NamespacedName]bool{}
	all := woken[types.NamespacedName{}]
	if all {
		p.blocked = map[types.UID]bool{}
	}
	p.mu.Unlock()

	pods := map[string]*corev1.Pod{}
	b := p.book
	b.mu.Lock()
	for key := range woken {
		if e := b.gangs[key]; e != nil {
			unit, _ := b.unit(e)
			for _, u := range unit {
				b.callable(u, pods)
			}
		}
	}
	if all {
		for _, e := range b.gangs {
			if e.refusal != "" {
				b.callable(e, pods)
			}
		}
	}
	b.mu.Unlock()
	if all && len(blocked) > 0 {
		p.unblock(blocked, pods)
	}
	if len(pods) > 0 {
		p.handle.Activate(p.logr, pods)
	}
}

// callable adds the pods of a gang that are worth a try: of a refused gang the
// leader, and who was not told yet, else all that wait.
func (b *book) callable(e *entry, pods map[string]*corev1.Pod) {
	if ok, _ := b.complete(e); !ok {
		return
	}
	if e.refusal != "" && !b.waits(e.leader) {
		b.refuse(e, e.refusal, "")
	}
	for uid, m := range e.members {
		if !m.waits() || m.stage == pending && e.refusal != "" && uid != e.leader && m.told {
			continue
		}
		pods[m.pod.Namespace+"/"+m.pod.Name] = m.pod
	}
}

// unblock adds pods of no gang.
func (p *Plugin) unblock(blocked map[types.UID]bool, pods map[string]*corev1.Pod) {
	for _, object := range p.handle.SharedInformerFactory().Core().V1().Pods().Informer().GetStore().List() {
		if pod, ok := object.(*corev1.Pod); ok && blocked[pod.UID] && pod.Spec.NodeName == "" {
			pods[pod.Namespace+"/"+pod.Name] = pod
		}
	}
}

// expire ends promises whose time is up, lets gangs try nodes again that they
// have avoided long enough, and spreads reasons.
func (p *Plugin) expire() {
	type late struct {
		waiting []types.UID
		why     string
	}
	var all []late
	b := p.book
	b.mu.Lock()
	now := b.now()
	var retry []types.NamespacedName
	for _, e := range b.gangs {
		for node, until := range e.avoid {
			if now.After(until) {
				delete(e.avoid, node)
				retry = append(retry, e.key)
			}
		}
		if e.tell(now) || e.nudge(now) {
			retry = append(retry, e.key)
		}
		if e.deadline.IsZero() || now.Before(e.deadline) {
			continue
		}
		b.settle(e)
		unit, _ := b.unit(e)
		b.meters.expired.Inc()
		why := fmt.Sprintf("%d of %d had a node after %s", e.count(reserved), max(e.gang.MinMember, 1), e.gang.Timeout)
		all = append(all, late{b.release(unit, why), why})
	}
	b.mu.Unlock()
	for _, key := range retry {
		p.wake(key)
	}
	for _, l := range all {
		p.reject(l.waiting, l.why)
		p.wake(types.NamespacedName{})
	}
}

// sweep rejects pods that wait although their gang does not: one that was on
// its way into Permit when the gang let go.
func (p *Plugin) sweep() {
	var stray []types.UID
	p.handle.IterateOverWaitingPods(func(w framework.WaitingPod) {
		pod := w.GetPod()
		p.book.mu.Lock()
		defer p.book.mu.Unlock()
		if e := p.book.of[pod.UID]; e != nil && e.members[pod.UID].stage < reserved {
			stray = append(stray, pod.UID)
		}
	})
	for _, uid := range stray {
		if w := p.handle.GetWaitingPod(uid); w != nil {
			w.Reject(Name, p.words(uid, "its gang let go of all nodes"))
		}
	}
}
