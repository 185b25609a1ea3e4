package gpu

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/deviceplugin/preferred"
)

// Prefer implements [plugin.Resource]: whole GPUs as [preferred.Scores.Choose] has
// it, MIG devices from the GPUs with the fewest left. What the expected pod
// accepts comes first; if that does not suffice, the others fill up, and the
// check at the start of the container says so.
func (r *Resource) Prefer(available, must []string, size int) ([]string, error) {
	s := r.now.Load()
	free, err := s.known(available)
	if err != nil {
		return nil, err
	}
	first, err := s.known(must)
	if err != nil {
		return nil, err
	}
	if len(first) < len(must) || len(must) > size || size > len(available) || size < 1 {
		return nil, fmt.Errorf("choose %d devices of %d with %d: not possible", size, len(available), len(must))
	}
	steering := Steering{}
	free = r.withoutUsed(free, first, size)
	if r.options.Pods != nil {
		if expected, ok := r.options.Pods.Expected(r.options.Name, size); ok {
			steering = expected
		}
	}
	wanted := slices.DeleteFunc(slices.Clone(free), func(c card) bool { return !s.accepted(steering, &c) })
	wanted = merge(wanted, first)
	if len(wanted) >= size {
		return s.choose(wanted, first, size)
	}
	return s.choose(merge(free, wanted), wanted, size)
}

// withoutUsed leaves out what containers have although the kubelet offers it,
// if enough is left. If not, the binder refuses the start until they are gone.
func (r *Resource) withoutUsed(free, must []card, size int) []card {
	if r.options.InUse == nil {
		return free
	}
	used := r.options.InUse()
	if len(used) == 0 {
		return free
	}
	rest := slices.DeleteFunc(slices.Clone(free), func(c card) bool { return used[c.id] != "" })
	if rest = merge(rest, must); len(rest) < size {
		return free
	}
	return rest
}

// known are the cards of IDs, in the machine's order; IDs that are not in the
// snapshot any more are left out.
func (s *snapshot) known(ids []string) ([]card, error) {
	var cards []card
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if seen[id] {
			return nil, fmt.Errorf("device %q is named twice", id)
		}
		seen[id] = true
		if c, ok := s.cards[id]; ok {
			cards = append(cards, c)
		}
	}
	slices.SortFunc(cards, compareCards)
	return cards, nil
}

func compareCards(a, b card) int {
	return cmp.Or(cmp.Compare(a.gpu, b.gpu), strings.Compare(a.id, b.id))
}

// merge is both lists without doubles, in order.
func merge(a, b []card) []card {
	out := append(slices.Clone(a), b...)
	slices.SortFunc(out, compareCards)
	return slices.CompactFunc(out, func(a, b card) bool { return a.id == b.id })
}

func (s *snapshot) accepted(t Steering, c *card) bool {
	return t.accepts(c.id, s.uuids[c.gpu])
}

// choose picks size cards of free that include must.
func (s *snapshot) choose(free, must []card, size int) ([]string, error) {
	whole := !slices.ContainsFunc(free, func(c card) bool { return c.instance || c.gpu >= preferred.MaxGPUs })
	if !whole {
		return pack(free, must, size)
	}
	chosen, err := s.scores.Choose(maskOf(free), maskOf(must), size)
	if err != nil {
		return nil, fmt.Errorf("choose GPUs: %w", err)
	}
	ids := make([]string, 0, size)
	for ; chosen != 0; chosen &= chosen - 1 {
		ids = append(ids, s.uuids[bits.TrailingZeros64(chosen)])
	}
	return ids, nil
}

func maskOf(cards []card) uint64 {
	var mask uint64
	for i := range cards {
		mask |= 1 << cards[i].gpu
	}
	return mask
}

// pack takes must and then what is left of the GPUs that have the least left,
// so that other GPUs stay whole and can be cut anew. MIG devices have no peer
// to be near to.
func pack(free, must []card, size int) ([]string, error) {
	if len(free) < size {
		return nil, fmt.Errorf("choose %d devices: %d are left", size, len(free))
	}
	left := map[int]int{}
	for i := range free {
		left[free[i].gpu]++
	}
	ids := make([]string, 0, size)
	for i := range must {
		ids = append(ids, must[i].id)
	}
	rest := slices.SortedStableFunc(slices.Values(free), func(a, b card) int {
		return cmp.Compare(left[a.gpu], left[b.gpu])
	})
	for i := range rest {
		if len(ids) < size && !slices.Contains(ids, rest[i].id) {
			ids = append(ids, rest[i].id)
		}
	}
	return ids, nil
}
