package sgpu

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Want is what a pod asks for.
type Want struct {
	// containers have the first choice of cards in this order: what runs to the
	// end, then the init containers, as the node has it.
	containers []container
	// node is which nodes come first; empty is as configured.
	node config.Placement
	// key is equal for pods that want the same, and zero before Heed.
	key key
}

type key [sha256.Size]byte

// container is one that asks for shares.
type container struct {
	name    string
	turn    quota.Phase
	request quota.Request
}

// Read is what a pod asks for. The error is sharing.ErrNone for a pod that asks
// for no share, or names the container and what is wrong.
func Read(pod *corev1.Pod, c *config.NodeConfig) (*Want, error) {
	var w Want
	add := func(of *corev1.Container, turn quota.Phase) error {
		r, err := quota.ParseRequest(of.Resources.Limits, pod.Annotations, c)
		if errors.Is(err, quota.ErrNoShare) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("container %s: %w", of.Name, err)
		}
		w.containers = append(w.containers, container{of.Name, turn, r})
		return nil
	}
	var faults error
	for i := range pod.Spec.Containers {
		faults = errors.Join(faults, add(&pod.Spec.Containers[i], quota.Phase{}))
	}
	for _, passes := range []bool{false, true} {
		for i := range pod.Spec.InitContainers {
			of := &pod.Spec.InitContainers[i]
			if turn := quota.InitPhase(of, i); turn.Terminates() == passes {
				faults = errors.Join(faults, add(of, turn))
			}
		}
	}
	switch {
	case faults != nil:
		return nil, faults
	case len(w.containers) == 0:
		return nil, quota.ErrNoShare
	}
	return &w, nil
}

// Heed takes over what the pod's annotations say of binpack and spread, which
// counts only for who chooses the cards.
func (w *Want) Heed(annotations map[string]string) error {
	card, node, err := quota.Placements(annotations)
	if err != nil {
		return err
	}
	w.node = node
	for i := range w.containers {
		w.containers[i].request.Placement = card
	}
	w.key = sha256.Sum256(fmt.Appendf(nil, "%#v", w.containers))
	return nil
}

// Node is which nodes come first, if otherwise is configured.
func (w *Want) Node(otherwise config.Placement) config.Placement { return cmp.Or(w.node, otherwise) }

// Place chooses cards for all containers, and takes what they come to of cards:
// the most that any turn of the pod takes, not the sum. why is empty if all have
// theirs; else cards is as it was.
func (w *Want) Place(cards []quota.GPU, how config.Placement) (got map[string][]allocation.Share, why string) {
	got = make(map[string][]allocation.Share, len(w.containers))
	claims := make([][]quota.Claim, len(cards))
	for i := range w.containers {
		c := &w.containers[i]
		places, free := c.place(cards, claims, how)
		if places == nil {
			return nil, quota.Explain(free, &c.request)
		}
		for _, at := range places {
			share := cards[at].Share(&c.request)
			got[c.name] = append(got[c.name], share)
			claims[at] = append(claims[at], quota.Claim{Phase: c.turn, Share: share, Policy: c.request.Policy})
		}
	}
	for at := range cards {
		take(&cards[at], claims[at], nil)
	}
	return got, ""
}

// place chooses the cards of one container, of the cards and what its pod's
// others have of each: those that others have at another time, since they cost
// nobody anything, else as is wished. places is nil if there are none; free is
// what the container may have.
func (c *container) place(
	cards []quota.GPU, claims [][]quota.Claim, how config.Placement,
) (places []int, free []quota.GPU) {
	free = cards
	if slices.ContainsFunc(claims, func(of []quota.Claim) bool { return len(of) > 0 }) {
		free = slices.Clone(cards)
		var own []quota.GPU
		var at []int
		for i := range free {
			take(&free[i], claims[i], &c.turn)
			if slices.ContainsFunc(claims[i], func(x quota.Claim) bool { return !x.Phase.Overlaps(c.turn) }) {
				own, at = append(own, free[i]), append(at, i)
			}
		}
		if chosen, ok := quota.Place(own, &c.request, how, nil); ok {
			for i := range chosen {
				chosen[i] = at[chosen[i]]
			}
			return chosen, free
		}
	}
	if chosen, ok := quota.Place(free, &c.request, how, nil); ok {
		return chosen, free
	}
	return nil, free
}

// take charges a card with what a pod's containers have of it: all that it ever
// comes to, or for a turn, what it comes to then.
func take(card *quota.GPU, claims []quota.Claim, turn *quota.Phase) {
	for i := range claims {
		c := &claims[i]
		if turn == nil || c.Phase.Overlaps(*turn) {
			c.Mark(card)
		}
	}
	card.Charge(quota.Peak(claims, turn))
}
