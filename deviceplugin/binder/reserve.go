package binder

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Scheduler is a scheduler of others that knows cards.
type Scheduler interface {
	// Scheduled are the cards that it chose for a container of a pod, one share
	// each; none if it chose nothing. Only the cards of the shares count. The
	// error says why its choice is not believed.
	Scheduled(pod *corev1.Pod, container string, r *quota.Request) (shares []allocation.Share, by string, err error)
}

// reserve decides which cards the containers of a pod have when one of them
// starts, of all of them or of none: a pod that has one of its cards and waits for the next would keep
// both from others. Containers that have cards keep them, whatever the pod's
// annotations have become. fresh tells that something was decided. spec is nil
// if nobody knows the pod.
//
// All that is decided on a node is decided here, one pod after the other, by
// what the kubelet says and by what was decided since. The records are on disk
// before any spec is.
func (b *Binder) reserve(o owner, spec *corev1.Pod, now *account) (fresh bool, err error) {
	p := o.Pod
	s := selection{
		config: b.options.Config(), machine: b.options.Machine(), spec: spec,
		node: b.options.NodeName, scheduler: b.options.Scheduler,
	}
	if b.options.Cards != nil {
		s.cards = b.options.Cards()
	}
	chosen, err := b.choose(o, &s, now)
	b.refuseFor(p, err)
	if err != nil {
		return false, err
	}
	for _, r := range chosen {
		// The container that starts is on disk before its spec is. Its pod's others
		// may start after the next restart of ours.
		if r.Owner.Container != o.Container {
			err = errors.Join(err, b.save(r))
		}
	}
	if err != nil {
		err = fmt.Errorf("record of the cards of %s: %w", p, err)
	}
	b.note(faultState, err)
	return len(chosen) > 0, err
}

// choose is the part of reserve that nothing else may come between.
func (b *Binder) choose(o owner, s *selection, now *account) ([]*record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting, err := b.waitingLocked(o, now)
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	if s.spec == nil {
		return nil, fmt.Errorf("%s is not known yet, and so neither is what it asks for", o.Pod)
	}
	for _, other := range now.unknown {
		if !other.same(o.Pod) || other.Container != o.Container {
			return nil, fmt.Errorf("the record of container %s of %s was lost, and it is not known yet which cards it has",
				other.Container, other.Pod)
		}
	}
	s.ledger = b.ledgerLocked(now)
	for i := range waiting {
		if err := s.prepare(&waiting[i]); err != nil {
			return nil, err
		}
	}
	// What runs to the end has the first choice; init containers follow it.
	slices.SortStableFunc(waiting, func(x, y applicant) int {
		return cmp.Or(truth(x.turn.Terminates(), y.turn.Terminates()), cmp.Compare(x.place, y.place))
	})
	var chosen []*record
	b.decisions++
	for i := range waiting {
		a := &waiting[i]
		shares, by, err := s.decide(a)
		if err != nil {
			return nil, err
		}
		for _, share := range shares {
			s.ledger.claims = append(s.ledger.claims, claim{
				owner: a.owner, Claim: quota.Claim{Phase: a.turn, Share: share, Policy: a.request.Policy},
			})
		}
		for _, old := range a.records {
			r := old.clone()
			r.Owner, r.Turn, r.Policy, r.By, r.decided = &a.owner, a.turn, string(a.request.Policy), by, b.decisions
			r.Shares, r.RunAs = dealShares(r.IDs, shares), a.runAs
			chosen = append(chosen, r)
		}
	}
	for _, r := range chosen {
		b.records[r.Device] = r
		delete(b.gone, r.Device)
	}
	return chosen, nil
}

// applicant is a container that waits for cards.
type applicant struct {
	owner   owner
	turn    quota.Phase
	ids     []string
	records []*record
	request quota.Request
	runAs   *int64
	// place is the container's in its pod's list.
	place int
}

// waitingLocked are the containers of a pod that hold tickets and have no
// cards, when one of them starts. The others may run on cards that only their
// pod's annotation names; the one that starts does not. It is for holders of mu.
func (b *Binder) waitingLocked(starts owner, now *account) ([]applicant, error) {
	var waiting []applicant
	p := starts.Pod
	for i := range now.holdings {
		h := &now.holdings[i]
		if !h.same(p) || !b.shares(h) {
			continue
		}
		if h.Container != starts.Container && b.testimonyLocked(h.owner) != nil {
			continue
		}
		records, err := b.recordsOf(h)
		if err != nil {
			return nil, err
		}
		decided := slices.ContainsFunc(records, func(r *record) bool { return r.has(h.owner) })
		if len(records) == 0 || decided {
			continue
		}
		o := h.owner
		o.Namespace, o.Name, o.UID = p.Namespace, p.Name, cmp.Or(o.UID, p.UID)
		waiting = append(waiting, applicant{owner: o, ids: h.ids, records: records})
	}
	return waiting, nil
}

// has tells whether a container has its cards by the record.
func (r *record) has(o owner) bool {
	return len(r.Shares) > 0 && r.Owner != nil && r.Owner.same(o.Pod) && r.Owner.Container == o.Container
}

// shares tells whether a holding is one of shares.
func (b *Binder) shares(h *holding) bool {
	if kind, _, err := kindOf(b.options.Config(), h.resource); err == nil {
		return kind == kindSGPU
	}
	return slices.ContainsFunc(h.names, func(name string) bool {
		kind, _, ok := parseName(name)
		return ok && kind == kindSGPU
	})
}

// selection is the choice of cards for one pod.
type selection struct {
	config    *config.NodeConfig
	machine   *machine.Machine
	spec      *corev1.Pod
	node      string
	scheduler Scheduler
	// cards have nothing taken.
	cards  []quota.GPU
	ledger *ledger
}

// prepare finds out what a container asks for.
func (s *selection) prepare(a *applicant) error {
	container, t := quota.ContainerOf(s.spec, a.owner.Container)
	if container == nil {
		return fmt.Errorf("%s as it is known has no container %s", a.owner.Pod, a.owner.Container)
	}
	a.turn, a.runAs = t, runAs(s.spec, container)
	a.place = slices.IndexFunc(s.spec.Spec.Containers, func(c corev1.Container) bool { return c.Name == container.Name })
	request, err := quota.ParseRequest(container.Resources.Limits, s.spec.Annotations, s.config)
	if errors.Is(err, quota.ErrNoShare) {
		return fmt.Errorf("container %s holds %d tickets and %w", a.owner.Container, len(a.ids), err)
	}
	if err != nil {
		return a.refuse(RefusedRequest, "%s", err)
	}
	if request.GPUs != len(a.ids) {
		return fmt.Errorf("container %s holds %d tickets and asks for %d cards", a.owner.Container, len(a.ids), request.GPUs)
	}
	a.request = request
	return nil
}

// decide gives a container its cards, and says who chose them.
func (s *selection) decide(a *applicant) (shares []allocation.Share, by string, err error) {
	cards := s.ledger.fill(s.cards, s.machine, &a.owner, a.turn)
	a.stay(cards)
	uuids, by, err := s.scheduled(a)
	if err == nil && uuids == nil {
		uuids, err = s.place(a, cards)
		by = allocation.ByNode
	}
	if err != nil {
		return nil, "", err
	}
	for _, uuid := range uuids {
		i := slices.IndexFunc(cards, func(c quota.GPU) bool { return c.UUID == uuid })
		if i < 0 {
			return nil, "", a.refuse(RefusedAllocation, "%s chose card %s, which this node does not share", by, uuid)
		}
		if why := cards[i].Reject(&a.request); !why.None() {
			return nil, "", a.refuse(RefusedFull, "%s chose a card that cannot be had: %s", by, why)
		}
		shares = append(shares, cards[i].Share(&a.request))
	}
	return shares, by, nil
}

// stay lets a container start on cards that are about to change their mode if
// its tickets name them. They wait for it to end in any case, and where all of
// a node's cards change it could go nowhere else.
func (a *applicant) stay(cards []quota.GPU) {
	for i := range cards {
		c := &cards[i]
		if c.Draining && slices.ContainsFunc(a.ids, func(id string) bool { return cardOf(id) == c.UUID }) {
			c.Unhealthy = ""
		}
	}
}
