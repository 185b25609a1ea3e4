package placement

import (
	"cmp"
	"slices"
)

// item is a part of a group that takes pods: a group inside, or a node.
type item struct {
	// slots is how many whole blocks it takes, and room how many pods.
	slots, room int64
	id          int32
	// spare is true if it takes the last, shorter block besides.
	spare bool
}

// picker chooses the parts of a group that a gang spans.
type picker struct {
	items, sorted []item
	// sum[i] is the slots of sorted[:i]; spare[i] the first place from i on
	// with a spare item.
	sum   []int64
	spare []int32
	// buffer and counts are for sorting.
	buffer, chosen []item
	counts         []int32
}

// pick takes the fewest items that hold an amount; the shorter block is held by
// a slot or by an item's spare room. Of the sets with so few items it is the
// one that leaves the largest items whole: their sizes (slots, then room), the
// largest first, are least in lexicographic order. Of equal items the first in
// the tree are taken. It is empty if all items together do not do. The last of
// the chosen is the one that need not be filled.
//
// It goes through the items from the largest to the least and leaves out each
// one without which the later ones still do; whether they do is one subtraction,
// since the largest of the later ones are the best.
func (p *picker) pick(a amount) []item {
	p.chosen = p.chosen[:0]
	k := p.fewest(a)
	if k == 0 {
		return nil
	}
	need, bonus := a.slots(), a.short > 0
	for i := 0; k > 0; i++ {
		if p.do(i+1, k, need, bonus) {
			continue
		}
		p.chosen = append(p.chosen, p.sorted[i])
		need -= p.sorted[i].slots
		if bonus && p.sorted[i].spare {
			bonus, need = false, need-1
		}
		k--
	}
	p.last()
	return p.chosen
}

// fewest is how many items hold an amount; 0 if all together do not.
func (p *picker) fewest(a amount) int {
	p.sort()
	p.index()
	for k := 1; k <= len(p.sorted); k++ {
		if p.do(0, k, a.slots(), a.short > 0) {
			return k
		}
	}
	return 0
}

// do is true if k of the items from place i on hold so many slots. With bonus,
// one spare item holds one more.
func (p *picker) do(i, k int, need int64, bonus bool) bool {
	if i+k > len(p.sorted) {
		return false
	}
	have := p.sum[i+k] - p.sum[i]
	if have >= need || !bonus || k == 0 {
		return have >= need
	}
	at := int(p.spare[i])
	switch {
	case at == len(p.sorted):
		return false
	case at < i+k:
		return have+1 >= need
	}
	return have-p.sorted[i+k-1].slots+p.sorted[at].slots+1 >= need
}

// last moves the smallest of the chosen, and of equal ones the one that comes
// last in the tree, to the end.
func (p *picker) last() {
	end := len(p.chosen) - 1
	at := end
	for i := end; i >= 0 && compare(&p.chosen[i], &p.chosen[end]) == 0; i-- {
		if p.chosen[i].id > p.chosen[at].id {
			at = i
		}
	}
	p.chosen[at], p.chosen[end] = p.chosen[end], p.chosen[at]
}

func compare(a, b *item) int {
	return cmp.Or(cmp.Compare(b.slots, a.slots), cmp.Compare(b.room, a.room))
}

// open is the place of the chosen item that is not filled but takes what is
// left of an amount: the last, or the last with spare room if only what blocks
// leave over takes the shorter one.
func open(chosen []item, a amount) int {
	total := int64(0)
	for i := range chosen {
		total += chosen[i].slots
	}
	at := len(chosen) - 1
	for total < a.slots() && !chosen[at].spare {
		at--
	}
	return at
}

// sort orders the items by slots and room, the largest first, and equal ones
// the last in the tree first, since the picker leaves out the first that it
// can.
func (p *picker) sort() {
	const few, most = 48, 1 << 16
	p.sorted = append(p.sorted[:0], p.items...)
	slices.Reverse(p.sorted)
	var slots, room int64
	for i := range p.items {
		slots, room = max(slots, p.items[i].slots), max(room, p.items[i].room)
	}
	if len(p.items) <= few || max(slots, room) > most {
		slices.SortStableFunc(p.sorted, func(a, b item) int { return compare(&a, &b) })
		return
	}
	// Counting keeps large flat trees linear.
	p.count(room, func(it *item) int64 { return it.room })
	p.count(slots, func(it *item) int64 { return it.slots })
}

// count sorts by a key that is at most largest, the largest first, and leaves
// equal ones in their order.
func (p *picker) count(largest int64, key func(*item) int64) {
	p.counts = slices.Grow(p.counts[:0], int(largest)+2)[:largest+2]
	clear(p.counts)
	for i := range p.sorted {
		p.counts[largest-key(&p.sorted[i])+1]++
	}
	for i := int64(1); i <= largest; i++ {
		p.counts[i] += p.counts[i-1]
	}
	p.buffer = append(p.buffer[:0], p.sorted...)
	for i := range p.buffer {
		place := &p.counts[largest-key(&p.buffer[i])]
		p.sorted[*place] = p.buffer[i]
		*place++
	}
}

// index adds up the sorted items.
func (p *picker) index() {
	n := len(p.sorted)
	p.sum = append(p.sum[:0], 0)
	for i := range p.sorted {
		p.sum = append(p.sum, p.sum[i]+p.sorted[i].slots)
	}
	p.spare = slices.Grow(p.spare[:0], n+1)[:n+1]
	p.spare[n] = int32(n) //nolint:gosec // At most maxNodes.
	for i := n - 1; i >= 0; i-- {
		p.spare[i] = p.spare[i+1]
		if p.sorted[i].spare {
			p.spare[i] = int32(i) //nolint:gosec // At most maxNodes.
		}
	}
}
