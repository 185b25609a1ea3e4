package binder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/sharing/quota"
)

// Kinds of [Drift].
const (
	// DriftRecord: a container had shares and no record, and got one.
	DriftRecord = "record"
	// DriftLost: a container has shares, and the kubelet has forgotten its
	// devices. They stay its own.
	DriftLost = "lost"
	// DriftOvercommit: containers have more of a card than there is, because
	// the card or the configuration changed. Nobody new gets it.
	DriftOvercommit = "overcommit"
	// DriftUnrecorded: a container has shares, and neither a record nor a CDI
	// spec is left of it; its pod's annotation says of which cards, or its device
	// IDs.
	DriftUnrecorded = "unrecorded"
	// DriftAnnotation: a pod's annotation said something else than what its
	// containers have, and was put right.
	DriftAnnotation = "annotation"
)

// Drift is a difference between what is and what should be.
type Drift struct{ Kind, Message string }

// Reconcile looks at who has what, and gives the shared cards with all that is
// taken, and the differences that are new since the last call.
func (b *Binder) Reconcile(ctx context.Context) (cards []quota.GPU, drifts []Drift, err error) {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	now, err := b.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	b.tellLost(ctx, now)
	b.forgetRefused(now)
	if now.checkpointErr == nil && len(b.expire(now, liveNames(now))) > 0 {
		b.signal()
	}
	cards = b.taken(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	drifting := make(map[Drift]bool)
	for i := range cards {
		if what := overcommitted(&cards[i]); what != "" {
			drifting[Drift{DriftOvercommit, what}] = true
		}
	}
	for _, r := range b.records {
		if r.Kind == kindSGPU && r.Owner != nil && b.lost[*r.Owner] {
			drifting[Drift{DriftLost, fmt.Sprintf("the kubelet has forgotten the shares of container %s of %s",
				r.Owner.Container, r.Owner.Pod)}] = true
		}
	}
	drifts, b.drifts = b.drifts, nil
	for d := range drifting {
		if !b.drifting[d] {
			drifts = append(drifts, d)
		}
	}
	b.drifting = drifting
	slices.SortFunc(drifts, func(x, y Drift) int { return strings.Compare(x.Kind+x.Message, y.Kind+y.Message) })
	return cards, drifts, nil
}

// taken are the shared cards with all that is taken.
func (b *Binder) taken(now *account) []quota.GPU {
	if b.options.Cards == nil {
		return nil
	}
	cards, m := b.options.Cards(), b.options.Machine()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledgerLocked(now).fill(cards, m, nil, quota.Phase{})
}

// overcommitted says what is too much on a card.
func overcommitted(c *quota.GPU) string {
	switch {
	case c.VCore > quota.Whole:
		return fmt.Sprintf("card %d (%s): its tenants have %d %% of its compute", c.Index, c.UUID, c.VCore)
	case c.UsedMiB > c.MemoryMiB:
		return fmt.Sprintf("card %d (%s): its tenants have %d MiB of %d", c.Index, c.UUID, c.UsedMiB, c.MemoryMiB)
	case c.Consumers > c.Slots:
		return fmt.Sprintf("card %d (%s): %d tenants on %d slots", c.Index, c.UUID, c.Consumers, c.Slots)
	}
	return ""
}

// Cards are the shared cards with what is taken by containers that we know of,
// without asking the kubelet.
func (b *Binder) Cards() []quota.GPU {
	if b.options.Cards == nil {
		return nil
	}
	cards, m := b.options.Cards(), b.options.Machine()
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &ledger{whole: make(map[string]owner)}
	for _, r := range b.records {
		if _, gone := b.gone[r.Device]; gone || r.Owner == nil {
			continue
		}
		if r.Kind == kindGPU {
			l.hold(r.IDs, *r.Owner)
		}
		for _, s := range r.Shares {
			l.claims = append(l.claims, claimOf(*r.Owner, r, s))
		}
	}
	l.claims = append(l.claims, b.testifiedLocked()...)
	return l.fill(cards, m, nil, quota.Phase{})
}
