package fabric

import (
	"cmp"
	"slices"
)

// tally counts values, one to ten different ones as a rule. The zero value is empty.
type tally[K comparable] struct{ list []count[K] }

type count[K comparable] struct {
	value K
	n     int32
}

func (t *tally[K]) reset() { t.list = t.list[:0] }

// add counts n more of a value.
func (t *tally[K]) add(value K, n int32) {
	for i := range t.list {
		if t.list[i].value == value {
			t.list[i].n += n
			return
		}
	}
	t.list = append(t.list, count[K]{value, n})
}

func (t *tally[K]) count(value K) int32 {
	for i := range t.list {
		if t.list[i].value == value {
			return t.list[i].n
		}
	}
	return 0
}

// compare orders values by how frequent they are.
func (t *tally[K]) compare(a, b K) int { return cmp.Compare(t.count(a), t.count(b)) }

// most returns the most frequent value, the least of several, and zero without any.
func (t *tally[K]) most(compare func(a, b K) int) K {
	var best count[K]
	for _, c := range t.list {
		if c.n > best.n || c.n == best.n && compare(c.value, best.value) < 0 {
			best = c
		}
	}
	return best.value
}

// isTied reports whether another value is as frequent.
func (t *tally[K]) isTied(value K) bool {
	n := t.count(value)
	return slices.ContainsFunc(t.list, func(c count[K]) bool { return c.n == n && c.value != value })
}
