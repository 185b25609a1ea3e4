package binder

import (
	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// scheduled are the cards that a scheduler chose for a container, and who it
// was; none if none did. What an annotation says is a wish: whether its cards
// are there and have room is judged as for any other choice. These are refused,
// since their pod was scheduled by them:
//
//   - what does not parse, or another version;
//   - an allocation of another node: the pod was bound elsewhere after all;
//   - no entry for a container that asks for shares, more or fewer cards than
//     it asks for, one card twice;
//   - another share than it asks for: the limits are the pod's, the cards the
//     scheduler's.
//
// One that was written after the container was bound is not looked at.
func (s *selection) scheduled(a *applicant) (uuids []string, by string, err error) {
	text, written := s.spec.Annotations[wellknown.SGPUAllocation]
	if !written {
		if s.scheduler == nil {
			return nil, "", nil
		}
		shares, by, err := s.scheduler.Scheduled(s.spec, a.owner.Container, &a.request)
		if err != nil {
			return nil, "", a.refuse(RefusedAllocation, "%s", err)
		}
		for _, share := range shares {
			uuids = append(uuids, share.UUID)
		}
		if len(uuids) != 0 && len(uuids) != a.request.GPUs {
			return nil, "", a.refuse(RefusedAllocation, "%s chose %d cards of %d", by, len(uuids), a.request.GPUs)
		}
		return uuids, by, nil
	}
	chosen, err := allocation.ParseAllocation(text)
	if err != nil {
		return nil, "", a.refuse(RefusedAllocation, "annotation %s: %s", wellknown.SGPUAllocation, err)
	}
	if chosen.Node != s.node {
		return nil, "", a.refuse(RefusedAllocation, "annotation %s is for node %s, and this is %s",
			wellknown.SGPUAllocation, chosen.Node, s.node)
	}
	shares := chosen.Containers[a.owner.Container]
	if len(shares) != a.request.GPUs {
		return nil, "", a.refuse(RefusedAllocation, "annotation %s has %d cards for the container, which asks for %d",
			wellknown.SGPUAllocation, len(shares), a.request.GPUs)
	}
	for _, share := range shares {
		if !s.agrees(&share, a) {
			return nil, "", a.refuse(RefusedAllocation,
				"annotation %s gives vcore %d and %d MiB of card %s, and the container asks for others",
				wellknown.SGPUAllocation, share.VCore, share.MemoryMiB, share.UUID)
		}
		uuids = append(uuids, share.UUID)
	}
	return uuids, allocation.ByScheduler, nil
}

// agrees tells whether a share is what the container asks of its card. A card
// that this node does not share is refused later.
func (s *selection) agrees(share *allocation.Share, a *applicant) bool {
	for i := range s.cards {
		if s.cards[i].UUID == share.UUID {
			return s.cards[i].Share(&a.request) == *share
		}
	}
	return true
}
