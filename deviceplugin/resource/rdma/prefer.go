package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
)

// Prefer chooses size tickets of available, with must among them: of as many
// different HCAs as there are, of those with the most free slots first, then
// in PCI order, and on each the lowest slots.
func Prefer(available, must []string, size int) ([]string, error) {
	if size > len(available) || size < len(must) {
		return nil, fmt.Errorf("%d of %d tickets with %d given", size, len(available), len(must))
	}
	type shelf struct {
		hca   string
		slots []int
		taken int
		free  int
	}
	shelves := make(map[string]*shelf)
	var errs []error
	at := func(ticket string) (*shelf, int) {
		hca, slot, err := ParseTicket(ticket)
		if err != nil {
			errs = append(errs, err)
		}
		if shelves[hca] == nil {
			shelves[hca] = &shelf{hca: hca}
		}
		return shelves[hca], slot
	}
	chosen := slices.Clone(must)
	for _, ticket := range must {
		s, _ := at(ticket)
		s.taken++
	}
	for _, ticket := range available {
		s, slot := at(ticket)
		s.free++
		if !slices.Contains(must, ticket) {
			s.slots = append(s.slots, slot)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	order := make([]*shelf, 0, len(shelves))
	for _, s := range shelves {
		slices.Sort(s.slots)
		order = append(order, s)
	}
	for len(chosen) < size {
		left := slices.DeleteFunc(slices.Clone(order), func(s *shelf) bool { return len(s.slots) == 0 })
		if len(left) == 0 {
			return nil, errors.New("a ticket is given that is not available")
		}
		next := slices.MinFunc(left, func(a, b *shelf) int {
			return cmp.Or(cmp.Compare(a.taken, b.taken), cmp.Compare(b.free, a.free),
				machine.ComparePCI(a.hca, b.hca), cmp.Compare(a.hca, b.hca))
		})
		chosen = append(chosen, Ticket(next.hca, next.slots[0]))
		next.slots = next.slots[1:]
		next.taken++
	}
	slices.Sort(chosen)
	return chosen, nil
}
