package binder

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kinds of refusals.
const (
	// RefusedRequest: what the pod asks for makes no sense, on any node.
	RefusedRequest = "request"
	// RefusedAllocation: a scheduler's choice is not for this container, this
	// node or the cards that it has.
	RefusedAllocation = "allocation"
	// RefusedUnscheduled: no scheduler chose a card, and the configuration wants
	// one that does.
	RefusedUnscheduled = "unscheduled"
	// RefusedFull: the card would be over-committed.
	RefusedFull = "full"
)

// Refusal is a pod whose containers wait for cards, none of which has started
// that asks for one.
type Refusal struct {
	Pod       Pod
	Container string
	// Kind is request, allocation, unscheduled or full.
	Kind   string
	Reason string
	Since  time.Time
}

// refusedError is why a container gets no card.
type refusedError struct{ container, kind, reason string }

func (e *refusedError) Error() string {
	return "container " + e.container + " gets no card: " + e.reason
}

func (a *applicant) refuse(kind, format string, args ...any) error {
	return &refusedError{a.owner.Container, kind, fmt.Sprintf(format, args...)}
}

// refusing is a refusal and what its pod was told.
type refusing struct {
	Refusal
	told map[string]bool
}

// maxTold bounds what one pod is told: what is left of cards changes with every
// tenant.
const maxTold = 8

// refuseFor keeps whether a pod is refused; err is nil once it has its cards.
// Each reason is told once.
func (b *Binder) refuseFor(p Pod, err error) {
	var why *refusedError
	if err != nil && !errors.As(err, &why) {
		return // Something else is wrong, and may be soon right.
	}
	b.mu.Lock()
	old := b.refused[p]
	if why == nil {
		delete(b.refused, p)
		b.mu.Unlock()
		if old != nil {
			b.options.Log.Info("no longer refused", "pod", p.String())
		}
		return
	}
	if old == nil {
		old = &refusing{Refusal: Refusal{Pod: p, Since: b.options.Now()}, told: make(map[string]bool)}
		b.refused[p] = old
	}
	old.Container, old.Kind, old.Reason = why.container, why.kind, why.reason
	tell := !old.told[why.Error()] && len(old.told) < maxTold
	if tell {
		old.told[why.Error()] = true
	}
	b.mu.Unlock()
	if !tell {
		return
	}
	b.signal()
	b.options.Log.Warn("refused", "pod", p.String(), "container", why.container, "kind", why.kind, "reason", why.reason)
	if b.options.Events != nil {
		b.options.Events.Warn(p, SGPURefused, why.Error())
	}
}

// Refused are the pods that wait for cards now, by namespace and name.
func (b *Binder) Refused() []Refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Refusal
	for _, r := range b.refused {
		all = append(all, r.Refusal)
	}
	slices.SortFunc(all, func(x, y Refusal) int {
		return cmp.Or(cmp.Compare(x.Pod.Namespace, y.Pod.Namespace), cmp.Compare(x.Pod.Name, y.Pod.Name),
			cmp.Compare(x.Pod.UID, y.Pod.UID))
	})
	return all
}

// forgetRefused drops refused pods that are gone.
func (b *Binder) forgetRefused(now *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.refused, func(p Pod, _ *refusing) bool {
		return !slices.ContainsFunc(now.holdings, func(h holding) bool { return h.same(p) })
	})
}
