package plugin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// slack is how much longer the framework would let a pod wait than its gang
// does: who is late is told by us, in the gang's words, and never behind our
// back.
const slack = time.Minute

// Reserve notes that a member holds its place, and decides on shared cards.
func (p *Plugin) Reserve(
	_ context.Context, state framework.CycleState, pod *corev1.Pod, node string,
) *framework.Status {
	if c := read(state); c != nil && c.shares != nil && !p.recall(state, pod, node) {
		if s := p.reserveShares(c.shares, pod, node); s != nil {
			return s
		}
	}
	if t := trialOf(state); t != nil {
		t.held[pod.UID] = true
		p.remember(state, pod)
	}
	return p.reserve(pod, node)
}

func (p *Plugin) reserve(pod *corev1.Pod, node string) *framework.Status {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e == nil {
		return nil
	}
	m := e.members[pod.UID]
	if m.stage != planned || m.node != node {
		return framework.NewStatus(framework.Unschedulable,
			fmt.Sprintf("rejected by podgroup %s: its plan changed, and node %s is no longer the pod's place", e.key.Name, node))
	}
	m.stage = reserved
	return nil
}

// Unreserve takes a member's place back. If its gang still waits, it takes back
// everything: what is left is no gang.
func (p *Plugin) Unreserve(_ context.Context, _ framework.CycleState, pod *corev1.Pod, node string) {
	p.forgetShares(pod.UID)
	waiting, why := p.unreserve(pod, node)
	p.reject(waiting, why)
}

func (p *Plugin) unreserve(pod *corev1.Pod, node string) (waiting []types.UID, why string) {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e == nil {
		return nil, ""
	}
	switch m := e.members[pod.UID]; m.stage {
	case reserved:
		unit, _ := b.unit(e)
		why = fmt.Sprintf("member %s lost its place on node %s", pod.Name, node)
		m.stage, m.node = pending, ""
		return b.release(unit, why), why
	case released:
		m.stage, m.node = pending, ""
		b.promise()
	default:
	}
	return nil, ""
}

// Permit lets a member wait until enough of its gang have a node, and of all
// gangs that it runs with; then all go.
func (p *Plugin) Permit(
	_ context.Context, _ framework.CycleState, pod *corev1.Pod, _ string,
) (*framework.Status, time.Duration) {
	free, wait := p.permit(pod)
	if wait > 0 {
		return framework.NewStatus(framework.Wait), wait
	}
	for _, uid := range free {
		if waiting := p.handle.GetWaitingPod(uid); waiting != nil {
			waiting.Allow(Name)
		}
	}
	return nil, 0
}

// permit is whom to let go, or how long to wait.
func (p *Plugin) permit(pod *corev1.Pod) (free []types.UID, wait time.Duration) {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e == nil {
		return nil, 0
	}
	unit, missing := b.unit(e)
	enough := missing == nil || e.once
	for _, u := range unit {
		enough = enough && u.satisfied()
	}
	if !enough {
		return nil, max(e.deadline.Sub(b.now()), 0) + slack
	}
	for _, u := range unit {
		for uid, m := range u.members {
			if m.stage == reserved {
				m.stage = released
				if uid != pod.UID {
					free = append(free, uid)
				}
			}
		}
		b.placed(u)
		u.once, u.refusal, u.leader, u.retries, u.turns = true, "", "", 0, 0
	}
	b.promise()
	return free, 0
}

// PostBind notes that a member has its node.
func (p *Plugin) PostBind(_ context.Context, _ framework.CycleState, pod *corev1.Pod, node string) {
	if p.isNative(pod) {
		p.shy.forget(types.NamespacedName{Namespace: pod.Namespace, Name: *pod.Spec.SchedulingGroup.PodGroupName})
		return
	}
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	if e := p.book.of[pod.UID]; e != nil {
		if m := e.members[pod.UID]; m.stage == released {
			m.stage, m.node = bound, node
		}
		p.book.started(e)
	}
}

// reject sends members that wait back to the queue, with the reason.
func (p *Plugin) reject(uids []types.UID, why string) {
	for _, uid := range uids {
		if waiting := p.handle.GetWaitingPod(uid); waiting != nil {
			waiting.Reject(Name, p.words(uid, why))
		}
	}
	if len(uids) > 0 {
		p.wake(types.NamespacedName{})
	}
}

// words are why, with the gang's name.
func (p *Plugin) words(uid types.UID, why string) string {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	if e := p.book.of[uid]; e != nil {
		return fmt.Sprintf("rejected by podgroup %s: %s", e.key.Name, why)
	}
	return why
}
