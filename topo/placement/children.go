package placement

import (
	"cmp"
	"slices"
)

// item is a part of a group that takes pods: a group inside, or a node.
type item struct {
	// slots is the number of whole blocks it takes, and room the number of pods.
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
	sum    []int64
	spare  []int32
	chosen []item
}

// pick takes the fewest items that hold an amount; the shorter block is held by a slot or by an
// item's spare room. Of the smallest sets it takes the one that leaves the largest items whole:
// their sizes (slots, then room), the largest first, are least in lexicographic order. Of equal
// items the first in the tree are taken. The last of the chosen is the one that is not filled but
// takes what is left of the amount: the smallest, or the smallest with spare room if only what
// blocks leave over takes the shorter one.
//
// If all items together do not do it takes all, and returns what is left over. The
// first with spare room is the last of them.
//
// It goes through the items from the largest to the least and leaves out each
// one without which the later ones still do; whether they do is one subtraction,
// since the largest of the later ones are the best.
func (p *picker) pick(a amount) (chosen []item, left amount) {
	p.chosen = p.chosen[:0]
	k := p.fewest(a)
	if k == 0 {
		return p.all(a)
	}
	need, bonus, total := a.slots(), a.short > 0, int64(0)
	for i := 0; k > 0; i++ {
		if p.do(i+1, k, need, bonus) {
			continue
		}
		p.chosen = append(p.chosen, p.sorted[i])
		total += p.sorted[i].slots
		need -= p.sorted[i].slots
		if bonus && p.sorted[i].spare {
			bonus, need = false, need-1
		}
		k--
	}
	p.moveOpen(total < a.slots())
	return p.chosen, amount{}
}

// all takes all items, and returns what they leave over.
func (p *picker) all(over amount) ([]item, amount) {
	p.chosen = append(p.chosen, p.items...)
	over.blocks -= p.sum[len(p.items)]
	at := slices.IndexFunc(p.chosen, func(c item) bool { return c.spare })
	if end := len(p.chosen) - 1; at >= 0 && over.short > 0 {
		p.chosen[at], p.chosen[end], over.short = p.chosen[end], p.chosen[at], 0
	}
	return p.chosen, over
}

// moveOpen moves the item that is not filled to the end: of equal ones the last
// in the tree, which comes first of them.
func (p *picker) moveOpen(spare bool) {
	end, at := len(p.chosen)-1, -1
	for i := end; i >= 0; i-- {
		if c := p.chosen[i]; (c.spare || !spare) && (at < 0 || compare(c, p.chosen[at]) == 0) {
			at = i
		}
	}
	p.chosen[at], p.chosen[end] = p.chosen[end], p.chosen[at]
}

// fewest returns how many items hold an amount; 0 if all together do not.
func (p *picker) fewest(a amount) int {
	p.sort()
	for k := 1; k <= len(p.sorted); k++ {
		if p.do(0, k, a.slots(), a.short > 0) {
			return k
		}
	}
	return 0
}

// do reports whether k of the items from place i on hold need slots. With bonus, one spare item
// holds one more.
func (p *picker) do(i, k int, need int64, bonus bool) bool {
	if i+k > len(p.sorted) {
		return false
	}
	have := p.sum[i+k] - p.sum[i]
	if have >= need || !bonus || k == 0 {
		return have >= need
	}
	at := int(p.spare[i])
	if at >= i+k && at < len(p.sorted) {
		have += p.sorted[at].slots - p.sorted[i+k-1].slots
	}
	return at < len(p.sorted) && have+1 >= need
}

func compare(a, b item) int {
	return cmp.Or(cmp.Compare(b.slots, a.slots), cmp.Compare(b.room, a.room))
}

// sort orders the items by slots and room, the largest first, and equal ones
// the last in the tree first, since the picker leaves out the first that it
// can. It adds them up.
func (p *picker) sort() {
	p.sorted = append(p.sorted[:0], p.items...)
	slices.SortFunc(p.sorted, func(a, b item) int { return cmp.Or(compare(a, b), cmp.Compare(b.id, a.id)) })
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
