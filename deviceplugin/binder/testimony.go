package binder

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// testimony is what is known of a container's shares when both its record and
// its CDI spec are lost: its pod's annotation [wellknown.SGPUBound].
//
// Whoever may change a pod may have written that. So it is believed only of
// containers that hold tickets by the kubelet's account, and only the names of
// their cards: what they have of them is what their limits ask for. It takes
// from the cards and gives nobody one: a container that starts again is decided
// anew, and no record is made of it. And it stands once it was given: to change
// the annotation later frees nothing.
//
// Of a container that runs and whose pod says nothing that can be believed, the
// tickets testify: they mostly name the cards that it has.
type testimony struct {
	owner
	turn   quota.Phase
	shares []allocation.Share
	// whole tells that it has all memory of its cards, however much that is.
	whole  bool
	policy quota.Policy
	by     string
	// doubt is why the pod's annotation is not believed; empty if it is.
	doubt string
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
	c := b.options.Config()
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
		t, err := attest(pod, &open[i], c, b.options.NodeName)
		if err != nil {
			if !runs(pod, o.Container) {
				continue // It has no card yet, or gets another one.
			}
			t = byTickets(pod, &open[i], c)
			t.doubt = err.Error()
		}
		t.owner = o
		found = append(found, t)
	}
	b.addTestimonies(found, now)
}

// addTestimonies adds those that are new, and tells of them.
func (b *Binder) addTestimonies(found []testimony, now *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blind = b.blind || len(now.unknown) > 0
	for i := range found {
		t := &found[i]
		if b.testimonyLocked(t.owner) != nil || b.recordedLocked(t.owner) || b.goneLocked(t.Pod, now) {
			continue
		}
		b.testimonies = append(b.testimonies, *t)
		b.drifts = append(b.drifts, Drift{DriftUnrecorded, t.String()})
		b.signal()
	}
}

// String says what is known, for people.
func (t *testimony) String() string {
	lost := fmt.Sprintf("the record and the CDI spec of container %s of %s were lost", t.Container, t.Pod)
	if t.doubt == "" {
		return lost + "; its pod's annotation says which cards it has, and nobody else gets them"
	}
	return fmt.Sprintf("%s, and nobody knows which cards it has: %s; those that its device IDs name are kept from "+
		"others, and may be the wrong ones: delete the pod", lost, t.doubt)
}

// doubtsLocked are the testimonies that may be wrong, as problems. It is for
// holders of mu.
func (b *Binder) doubtsLocked() []Problem {
	var all []Problem
	for i := range b.testimonies {
		if t := &b.testimonies[i]; t.doubt != "" && !b.recordedLocked(t.owner) {
			all = append(all, Problem{faultUnrecorded, t.String()})
		}
	}
	return all
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
			claims = append(claims, claim{
				owner: t.owner, Claim: quota.Claim{Phase: t.turn, Share: s, Policy: t.policy}, whole: t.whole, hearsay: true,
			})
		}
	}
	return claims
}

// attest is what a pod's annotation says of a container that holds tickets, or
// why it is not believed. A card that the node does not share now may be back
// later.
func attest(pod *corev1.Pod, h *holding, c *config.NodeConfig, node string) (testimony, error) {
	text, written := pod.Annotations[wellknown.SGPUBound]
	if !written {
		return testimony{}, fmt.Errorf("its pod has no annotation %s", wellknown.SGPUBound)
	}
	bound, err := allocation.ParseBound(text)
	if err != nil {
		return testimony{}, fmt.Errorf("annotation %s: %w", wellknown.SGPUBound, err)
	}
	container, when := quota.ContainerOf(pod, h.Container)
	if container == nil {
		return testimony{}, errors.New("its pod has no such container")
	}
	entry, told := bound.Containers[h.Container]
	switch {
	case bound.Node != node:
		return testimony{}, fmt.Errorf("annotation %s is of node %s, and this is %s", wellknown.SGPUBound, bound.Node, node)
	case !told:
		return testimony{}, fmt.Errorf("annotation %s does not say", wellknown.SGPUBound)
	}
	request, err := quota.ParseRequest(container.Resources.Limits, pod.Annotations, c)
	if err != nil {
		return testimony{}, err
	}
	if len(entry.Shares) != request.GPUs || len(h.ids) != request.GPUs {
		return testimony{}, fmt.Errorf("annotation %s names %d cards, it asks for %d and holds %d tickets",
			wellknown.SGPUBound, len(entry.Shares), request.GPUs, len(h.ids))
	}
	t := testimony{turn: when, whole: request.MemoryMiB == 0, policy: request.Policy, by: entry.By}
	for _, s := range entry.Shares {
		card := quota.GPU{UUID: s.UUID, MemoryMiB: s.MemoryMiB}
		t.shares = append(t.shares, card.Share(&request))
	}
	return t, nil
}

// byTickets takes the cards that a container's tickets name. What makes no sense
// has none.
func byTickets(pod *corev1.Pod, h *holding, c *config.NodeConfig) testimony {
	container, when := quota.ContainerOf(pod, h.Container)
	if container == nil {
		return testimony{}
	}
	t := testimony{turn: when}
	request, err := quota.ParseRequest(container.Resources.Limits, pod.Annotations, c)
	if err != nil {
		return t
	}
	t.whole, t.policy = request.MemoryMiB == 0, request.Policy
	for _, id := range h.ids {
		card := quota.GPU{UUID: cardOf(id)}
		if !slices.ContainsFunc(t.shares, func(s allocation.Share) bool { return s.UUID == card.UUID }) {
			t.shares = append(t.shares, card.Share(&request))
		}
	}
	return t
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
