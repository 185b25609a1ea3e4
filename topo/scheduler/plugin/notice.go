package plugin

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// incompleteFor is how long a gang may lack pods until somebody is told:
	// operators make a job's pods one after another.
	incompleteFor = 30 * time.Second
	// maxTold bounds the pods of a gang that are told the same.
	maxTold = 16
)

// Reasons of Events.
const (
	reasonIncomplete = "GangIncomplete"
	reasonRemark     = "GangRemark"
)

// note is an Event to be.
type note struct {
	pod          *corev1.Pod
	kind, reason string
	text         string
}

// notice tells people what no scheduling cycle does: that a gang waits for pods,
// whose members are never tried, and what of their words is ignored. Each once.
func (p *Plugin) notice() {
	var notes []note
	b := p.book
	b.mu.Lock()
	now := b.now()
	for _, e := range b.gangs {
		notes = append(notes, b.notes(e, now)...)
	}
	b.mu.Unlock()
	for _, n := range notes {
		p.handle.EventRecorder().WithLogger(p.logr).Eventf(n.pod, nil, n.kind, n.reason, "Scheduling", "%s", n.text)
	}
}

func (b *book) notes(e *entry, now time.Time) (notes []note) {
	ok, why := b.complete(e)
	if ok {
		e.since, e.noticed = now, ""
	}
	late := !ok && why != e.noticed && now.Sub(e.since) >= incompleteFor
	remarks := e.gang.Ignored
	if !late && (len(remarks) == 0 || e.remarked) {
		return nil
	}
	var waiting []*corev1.Pod
	for _, m := range ordered(e) {
		if m.waits() && len(waiting) < maxTold {
			waiting = append(waiting, m.pod)
		}
	}
	if late {
		e.noticed, e.rejected = why, time.Time{}
		for _, pod := range waiting {
			notes = append(notes, note{pod, corev1.EventTypeWarning, reasonIncomplete, why})
		}
	}
	if pod := e.untold(now); !e.remarked && pod != nil && len(remarks) > 0 {
		e.remarked = true
		// In one: a second Event of one reason about one pod counts as the first.
		notes = append(notes, note{pod, corev1.EventTypeWarning, reasonRemark, strings.Join(remarks, "; ")})
	}
	return notes
}

// untold is the first member that waits, or is so young that it got its node at
// once; older ones with a node were told by a scheduler before this one.
func (e *entry) untold(now time.Time) *corev1.Pod {
	for _, m := range ordered(e) {
		if m.waits() || m.live() && now.Sub(m.pod.CreationTimestamp.Time) < incompleteFor {
			return m.pod
		}
	}
	return nil
}
