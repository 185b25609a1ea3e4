package binder

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// claim is what one container has of one card.
type claim struct {
	owner
	quota.Claim
	// hearsay tells that it comes of a [testimony], whole that it is of all the
	// card's memory, whatever the share says.
	hearsay, whole bool
}

// claimOf is what a record says that a container has of one card.
func claimOf(o owner, r *record, s allocation.Share) claim {
	return claim{owner: o, Claim: quota.Claim{Phase: r.Turn, Share: s, Policy: quota.Policy(r.Policy)}}
}

// ledger is who has what of the cards, as far as it is known at one time.
type ledger struct {
	claims []claim
	// whole is who has a GPU, or a part of it by MIG, that is not to be shared.
	whole map[string]owner
}

// holders are the pods that hold a device ID, by resource and ID: one, unless
// the kubelet has forgotten another.
type holders map[[2]string][]Pod

func (a *account) holders() holders {
	all := make(holders)
	for i := range a.holdings {
		h := &a.holdings[i]
		for _, id := range h.ids {
			key := [2]string{h.resource, id}
			all[key] = append(all[key], h.Pod)
		}
	}
	return all
}

// have tells whether a record's pod holds an ID.
func (h holders) have(r *record, id string) bool {
	return r.Owner != nil && slices.ContainsFunc(h[[2]string{r.Resource, id}], r.Owner.same)
}

// ledgerLocked derives the ledger from the kubelet's account and our records.
// It is for holders of mu.
func (b *Binder) ledgerLocked(now *account) *ledger {
	l := &ledger{whole: make(map[string]owner)}
	holders := now.holders()
	// Records that could not be told apart are of one container and one choice.
	latest := make(map[owner]*record)
	for _, r := range b.records {
		if r.Owner == nil || r.Kind == kindRDMA || !b.liveLocked(r, now, holders) {
			continue
		}
		if r.Kind == kindGPU {
			l.hold(r.IDs, *r.Owner)
		} else if old := latest[*r.Owner]; len(r.Shares) > 0 && (old == nil || later(r, old)) {
			latest[*r.Owner] = r
		}
	}
	for o, r := range latest {
		for _, s := range r.Shares {
			l.claims = append(l.claims, claimOf(o, r, s))
		}
	}
	l.claims = append(l.claims, b.testifiedLocked()...)
	c := b.options.Config()
	for i := range now.holdings {
		h := &now.holdings[i]
		if kind, _, err := kindOf(c, h.resource); err == nil && kind == kindGPU {
			l.hold(h.ids, h.owner)
		}
	}
	return l
}

func (l *ledger) hold(ids []string, o owner) {
	for _, id := range ids {
		l.whole[id] = o
	}
}

// liveLocked tells whether a record's container is there: the kubelet says so,
// or has forgotten it, or it was decided after the account. Without the
// checkpoint nobody tells of ordinary init containers, so all containers of the
// pods that are there count.
func (b *Binder) liveLocked(r *record, now *account, all holders) bool {
	if b.lost[*r.Owner] || r.decided > now.at || now.checkpointErr != nil && now.active(r.Owner.Pod) {
		return true
	}
	if b.staleLocked(r, now) {
		return false
	}
	return slices.ContainsFunc(r.IDs, func(id string) bool { return all.have(r, id) })
}

// staleLocked tells whether a record's pod is in the checkpoint alone, and gone:
// the kubelet frees what a pod had when it ends, and writes the checkpoint when
// it gives the next pod something. A kubelet that has just started may not know
// its pods yet; then nobody is gone.
func (b *Binder) staleLocked(r *record, now *account) bool {
	return r.Owner != nil && b.goneLocked(r.Owner.Pod, now)
}

// goneLocked tells that of a pod, if its name is known.
func (b *Binder) goneLocked(p Pod, now *account) bool {
	return p.Name != "" && b.options.Now().Sub(b.woken) >= goneFor &&
		now.checkpointErr == nil && !now.listed[[2]string{p.Namespace, p.Name}]
}

func later(a, b *record) bool {
	return cmp.Or(cmp.Compare(a.decided, b.decided), a.Created.Compare(b.Created), cmp.Compare(a.Device, b.Device)) > 0
}

// fill puts what is taken into cards, which have nothing taken: all of it, or
// with a container, what is not to be had by it: what other pods have at most at
// any time, and what its own pod has while it runs.
func (l *ledger) fill(cards []quota.GPU, m *machine.Machine, who *owner, its quota.Phase) []quota.GPU {
	cards = slices.Clone(cards)
	at := make(map[string]int, len(cards))
	for i := range cards {
		at[cards[i].UUID] = i
	}
	l.close(cards, m)
	type tenancy struct {
		card int
		pod  Pod
	}
	of := make(map[tenancy][]quota.Claim)
	for _, c := range l.claims {
		i, ok := at[c.Share.UUID]
		own := who != nil && c.same(who.Pod)
		if !ok || own && c.Container == who.Container {
			continue
		}
		if own {
			c.Pod = who.Pod
		}
		if c.whole {
			c.Share.MemoryMiB = cards[i].MemoryMiB
		}
		of[tenancy{i, c.Pod}] = append(of[tenancy{i, c.Pod}], c.Claim)
		if !own || c.Phase.Overlaps(its) {
			c.color(&cards[i])
		}
	}
	for t, claims := range of {
		var with *quota.Phase
		if who != nil && t.pod == who.Pod {
			with = &its
		}
		cards[t.card].Charge(quota.Peak(claims, with))
	}
	return cards
}

// close says of the cards that somebody has whole who that is.
func (l *ledger) close(cards []quota.GPU, m *machine.Machine) {
	for _, id := range slices.Sorted(maps.Keys(l.whole)) {
		i := slices.IndexFunc(cards, func(c quota.GPU) bool { return c.UUID == parentOf(m, id) })
		if i >= 0 && (cards[i].Unhealthy == "" || cards[i].Draining) {
			cards[i].Unhealthy, cards[i].Draining = "held whole by "+l.whole[id].String(), false
		}
	}
}

// color gives a card what all its tenants have in common. Who is certainly
// there says what the card's policy is.
func (c *claim) color(card *quota.GPU) {
	if !c.hearsay || card.Policy == "" || c.Share.VCore >= quota.Whole {
		c.Mark(card)
	}
}

// parentOf is the UUID of the GPU that a MIG device is cut from, or the UUID
// itself.
func parentOf(m *machine.Machine, uuid string) string {
	for i := range m.GPUs {
		for j := range m.GPUs[i].MIG.Devices {
			if m.GPUs[i].MIG.Devices[j].UUID == uuid {
				return m.GPUs[i].UUID
			}
		}
	}
	return uuid
}
