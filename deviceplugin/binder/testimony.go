package binder

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/sharing"
)

// testimony is what is known of a container's shares when both its record and
// its CDI spec are lost: its pod's annotation [names.SGPUBound].
//
// Whoever may change a pod may have written that. So it is believed only of
// containers that hold tickets by the kubelet's account, and only the names of
// their cards: what they have of them is what their limits ask for. It takes
// from the cards and gives nobody one: a container that starts again is decided
// anew, and no record is made of it. And it stands once it was given: to change
// the annotation later frees nothing.
type testimony struct {
	owner
	turn   turn
	shares []allocation.Share
	policy sharing.Policy
	by     string
}

func (t *testimony) of(o owner) bool { return t.same(o.Pod) && t.Container == o.Container }

// testify gathers testimonies for the containers that hold tickets and of which
// nothing else is left.
func (b *Binder) testify(now *account) {
	open := b.openHoldings(now)
	if len(open) == 0 || b.options.Known == nil {
		return
	}
	var found []testimony
	silent := make(map[owner]string)
	c, cards := b.options.Config(), b.sharedCards()
	for i := range open {
		pod, complete := b.options.Known(open[i].Pod)
		switch {
		case pod == nil && !complete:
			now.unknown = append(now.unknown, open[i].owner)
			continue
		case pod == nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
			continue
		}
		o := open[i].owner
		o.Namespace, o.Name, o.UID = pod.Namespace, pod.Name, cmp.Or(o.UID, string(pod.UID))
		t, err := attest(pod, &open[i], c, b.options.NodeName, cards)
		switch {
		case err == nil:
			t.owner = o
			found = append(found, t)
		case runs(pod, o.Container):
			silent[o] = err.Error()
		}
	}
	b.addTestimonies(found, silent, now)
}

// sharedCards are the shared cards with nothing taken.
func (b *Binder) sharedCards() []sharing.Card {
	if b.options.Cards == nil {
		return nil
	}
	return b.options.Cards()
}

// addTestimonies adds those that are new, and tells of them and of containers
// that run on cards that nobody knows.
func (b *Binder) addTestimonies(found []testimony, silent map[owner]string, now *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blind = b.blind || len(now.unknown) > 0
	for i := range found {
		t := &found[i]
		if b.testimonyLocked(t.owner) != nil || b.recordedLocked(t.owner) || b.goneLocked(t.Pod, now) {
			continue
		}
		b.testimonies = append(b.testimonies, *t)
		b.drifts = append(b.drifts, Drift{DriftUnrecorded, fmt.Sprintf(
			"the record and the CDI spec of container %s of %s were lost; its pod's annotation says which cards it has, "+
				"and nobody else gets them", t.Container, t.Pod)})
		b.signal()
	}
	for _, o := range slices.SortedFunc(maps.Keys(silent), compareOwners) {
		if _, told := b.silent[o]; !told {
			b.drifts = append(b.drifts, Drift{DriftUnrecorded, fmt.Sprintf(
				"the record and the CDI spec of container %s of %s were lost, and nobody knows which cards it has: %s; "+
					"delete the pod, or its cards may be given to others as well", o.Container, o.Pod, silent[o])})
		}
	}
	b.silent = silent
}

func compareOwners(x, y owner) int {
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name),
		cmp.Compare(x.UID, y.UID), cmp.Compare(x.Container, y.Container))
}

// openHoldings are the containers that hold tickets of ours and of which there
// is neither a record nor a testimony. Testimonies of containers that are gone
// or have a record go.
func (b *Binder) openHoldings(now *account) []holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blind = now.checkpointErr != nil
	b.testimonies = slices.DeleteFunc(b.testimonies, func(t testimony) bool { return !b.standsLocked(&t, now) })
	var open []holding
	for i := range now.holdings {
		h := &now.holdings[i]
		if b.shares(h) && b.unrecordedLocked(h) && b.testimonyLocked(h.owner) == nil {
			open = append(open, *h)
		}
	}
	return open
}

// unrecordedLocked tells whether names were given out for a holding and none of
// them has a record. It is for holders of mu.
func (b *Binder) unrecordedLocked(h *holding) bool {
	if !h.known {
		for _, r := range b.records {
			if r.Resource == h.resource && slices.Equal(r.IDs, h.ids) {
				return false
			}
		}
		return true
	}
	ours := false
	for _, name := range h.names {
		if kind, device, ok := parseName(name); ok && kind == kindSGPU {
			ours = true
			if b.records[device] != nil {
				return false
			}
		}
	}
	return ours
}

// recordedLocked tells whether a container has cards by a record. It is for
// holders of mu.
func (b *Binder) recordedLocked(o owner) bool {
	for _, r := range b.records {
		if r.has(o) {
			return true
		}
	}
	return false
}

// testimonyLocked is the one about a container, nil if there is none. It is for
// holders of mu.
func (b *Binder) testimonyLocked(o owner) *testimony {
	for i := range b.testimonies {
		if b.testimonies[i].of(o) {
			return &b.testimonies[i]
		}
	}
	return nil
}

// standsLocked tells whether a testimony is still of use: its container holds
// tickets by the kubelet's account, or a kubelet that has just started may not
// know it yet, and there is no record. It is for holders of mu.
func (b *Binder) standsLocked(t *testimony, now *account) bool {
	if b.recordedLocked(t.owner) || b.goneLocked(t.Pod, now) {
		return false
	}
	return b.options.Now().Sub(b.woken) < goneFor || now.checkpointErr != nil && now.active(t.Pod) ||
		slices.ContainsFunc(now.holdings, func(h holding) bool { return t.of(h.owner) && b.shares(&h) })
}

// testifiedLocked are the claims of testimonies whose containers have no record. They
// come after those that are certain. It is for holders of mu.
func (b *Binder) testifiedLocked() []claim {
	var claims []claim
	for i := range b.testimonies {
		t := &b.testimonies[i]
		if b.recordedLocked(t.owner) {
			continue
		}
		for _, s := range t.shares {
			claims = append(claims, claim{owner: t.owner, turn: t.turn, share: s, policy: t.policy, hearsay: true})
		}
	}
	return claims
}

// attest is what a pod's annotation says of a container that holds tickets, or
// why it is not believed.
func attest(
	pod *corev1.Pod, h *holding, c *config.NodeConfig, node string, cards []sharing.Card,
) (testimony, error) {
	text, written := pod.Annotations[names.SGPUBound]
	if !written {
		return testimony{}, fmt.Errorf("its pod has no annotation %s", names.SGPUBound)
	}
	bound, err := allocation.ParseBound(text)
	if err != nil {
		return testimony{}, fmt.Errorf("annotation %s: %w", names.SGPUBound, err)
	}
	container, when := containerOf(pod, h.Container)
	if container == nil {
		return testimony{}, errors.New("its pod has no such container")
	}
	entry, told := bound.Containers[h.Container]
	switch {
	case bound.Node != node:
		return testimony{}, fmt.Errorf("annotation %s is of node %s, and this is %s", names.SGPUBound, bound.Node, node)
	case !told:
		return testimony{}, fmt.Errorf("annotation %s does not say", names.SGPUBound)
	}
	request, err := sharing.ParseRequest(container.Resources.Limits, pod.Annotations, c)
	if err != nil {
		return testimony{}, err
	}
	if len(entry.Shares) != request.Cards || len(h.ids) != request.Cards {
		return testimony{}, fmt.Errorf("annotation %s names %d cards, it asks for %d and holds %d tickets",
			names.SGPUBound, len(entry.Shares), request.Cards, len(h.ids))
	}
	t := testimony{turn: when, policy: request.Policy, by: entry.By}
	for _, s := range entry.Shares {
		at := slices.IndexFunc(cards, func(c sharing.Card) bool { return c.UUID == s.UUID })
		card := &sharing.Card{UUID: s.UUID, MemoryMiB: s.MemoryMiB} // It may be back, and shared, later.
		if at >= 0 {
			card = &cards[at]
		}
		t.shares = append(t.shares, card.Share(&request))
	}
	return t, nil
}

// runs tells whether a container does, by its pod's status.
func runs(pod *corev1.Pod, container string) bool {
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if s.Name == container {
			return s.State.Running != nil
		}
	}
	return false
}

// Blind tells whether the last look at who has what lacked something: the
// kubelet's checkpoint, or the pods of containers whose records were lost. What
// is not known to have shares may have some then.
func (b *Binder) Blind() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.blind
}
