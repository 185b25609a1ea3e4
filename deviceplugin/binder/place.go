package binder

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// place chooses cards where no scheduler did: those that containers of its pod
// had or will have at another time, then as configured, and of equal ones those
// that the tickets name.
func (s *selection) place(a *applicant, cards []quota.GPU) ([]string, error) {
	if s.config.SGPU.Unscheduled == config.UnscheduledReject {
		return nil, a.refuse(RefusedUnscheduled, "no scheduler chose a card, and sgpu.unscheduled is %s",
			s.config.SGPU.Unscheduled)
	}
	how := s.config.SGPU.Placement
	own := slices.DeleteFunc(slices.Clone(cards), func(c quota.GPU) bool {
		return !slices.ContainsFunc(s.ledger.claims, func(x claim) bool {
			return x.Share.UUID == c.UUID && x.same(a.owner.Pod) && !x.Phase.Overlaps(a.turn) && !x.hearsay
		})
	})
	if places, ok := quota.Place(own, &a.request, how, nil); ok {
		return uuidsOf(own, places), nil
	}
	places, ok := quota.Place(cards, &a.request, how, nil)
	if !ok {
		return nil, a.refuse(RefusedFull, "%s", quota.Explain(cards, &a.request))
	}
	named := slices.DeleteFunc(slices.Clone(cards), func(c quota.GPU) bool {
		return !slices.ContainsFunc(a.ids, func(id string) bool { return cardOf(id) == c.UUID })
	})
	best := uuidsOf(cards, places)
	if places, ok := quota.Place(named, &a.request, how, nil); ok {
		if uuids := uuidsOf(named, places); alike(cards, uuids, best) {
			return uuids, nil
		}
	}
	return best, nil
}

// alike tells whether a container can have the ones as well as the others: the
// same is left of them, and they are joined alike.
func alike(cards []quota.GPU, ones, others []string) bool {
	var left [2][]string
	for i, uuids := range [][]string{ones, others} {
		nodes := map[int]bool{}
		for _, c := range cards {
			if slices.Contains(uuids, c.UUID) {
				nodes[c.NUMA] = true
				c.UUID, c.Index, c.NUMA = "", 0, 0
				left[i] = append(left[i], fmt.Sprintf("%+v", c))
			}
		}
		slices.Sort(left[i])
		left[i] = append(left[i], strconv.Itoa(len(nodes)))
	}
	return slices.Equal(left[0], left[1])
}

func uuidsOf(cards []quota.GPU, places []int) []string {
	uuids := make([]string, len(places))
	for i, place := range places {
		uuids[i] = cards[place].UUID
	}
	return uuids
}

// cardOf is the card that a ticket names.
func cardOf(id string) string {
	uuid, _, _ := strings.Cut(id, slotMark)
	return uuid
}

// dealShares gives every ticket one of the shares: of the card that it names,
// else any.
func dealShares(tickets []string, shares []allocation.Share) []allocation.Share {
	left := slices.Clone(shares)
	dealt := make([]allocation.Share, len(tickets))
	given := make([]bool, len(tickets))
	for i, ticket := range tickets {
		at := slices.IndexFunc(left, func(s allocation.Share) bool { return s.UUID == cardOf(ticket) })
		if at >= 0 {
			dealt[i], given[i] = left[at], true
			left = slices.Delete(left, at, at+1)
		}
	}
	for i := range tickets {
		if !given[i] && len(left) > 0 {
			dealt[i], left = left[0], left[1:]
		}
	}
	return dealt
}
