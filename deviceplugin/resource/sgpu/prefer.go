package sgpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Prefer chooses size slots of available, with must among them, of as many
// different cards as there are: first of the wanted cards in their order, then
// of those with the fewest free slots, so that other cards stay whole; on each
// the lowest slots.
func Prefer(available, must, wanted []string, size int) ([]string, error) {
	if size > len(available) || size < len(must) {
		return nil, fmt.Errorf("%d of %d slots with %d given", size, len(available), len(must))
	}
	order, err := shelve(available, must, wanted)
	if err != nil {
		return nil, err
	}
	chosen := slices.Clone(must)
	for len(chosen) < size {
		order = slices.DeleteFunc(order, func(s *shelf) bool { return len(s.slots) == 0 })
		if len(order) == 0 {
			return nil, errors.New("a slot is given that is not available")
		}
		next := slices.MinFunc(order, compare)
		chosen = append(chosen, Slot(next.uuid, next.slots[0]))
		next.slots = next.slots[1:]
		next.taken++
	}
	slices.Sort(chosen)
	return chosen, nil
}

// shelve sorts slots by card.
func shelve(available, must, wanted []string) ([]*shelf, error) {
	var all []*shelf
	for _, id := range slices.Concat(available, must) {
		uuid, slot, err := ParseSlot(id)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(all, func(s *shelf) bool { return s.uuid == uuid })
		if at < 0 {
			at = len(all)
			all = append(all, &shelf{uuid: uuid, rank: len(wanted)})
			if i := slices.Index(wanted, uuid); i >= 0 {
				all[at].rank = i
			}
		}
		if s := all[at]; !slices.Contains(must, id) {
			s.slots = append(s.slots, slot)
		} else if !slices.Contains(s.given, slot) {
			s.given = append(s.given, slot)
			s.taken++
		}
	}
	for _, s := range all {
		slices.Sort(s.slots)
		s.free = len(s.slots)
	}
	return all, nil
}

// shelf is a card and its free slots.
type shelf struct {
	uuid string
	// rank is the card's place among the wanted ones.
	rank, taken, free int
	slots, given      []int
}

func compare(a, b *shelf) int {
	return cmp.Or(cmp.Compare(a.taken, b.taken), cmp.Compare(a.rank, b.rank), cmp.Compare(a.free, b.free),
		cmp.Compare(a.uuid, b.uuid))
}
