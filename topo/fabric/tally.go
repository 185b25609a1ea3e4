package fabric

// tally counts values. The zero value is empty.
type tally[K comparable] struct {
	list []count[K]
	// index is for long lists only: most have one to ten entries.
	index map[K]int
}

type count[K comparable] struct {
	value K
	n     int32
}

// indexed is the length from which a list has an index.
const indexed = 24

func (t *tally[K]) reset() { t.list, t.index = t.list[:0], nil }

// add counts n more of a value.
func (t *tally[K]) add(value K, n int32) {
	if i := t.find(value); i >= 0 {
		t.list[i].n += n
		return
	}
	t.list = append(t.list, count[K]{value, n})
	if len(t.list) == indexed {
		t.index = make(map[K]int, 2*indexed)
	}
	for i := len(t.index); t.index != nil && i < len(t.list); i++ {
		t.index[t.list[i].value] = i
	}
}

func (t *tally[K]) find(value K) int {
	if i, ok := t.index[value]; ok {
		return i
	}
	for i := range t.list[len(t.index):] {
		if t.list[i].value == value {
			return i
		}
	}
	return -1
}

func (t *tally[K]) count(value K) int32 {
	if i := t.find(value); i >= 0 {
		return t.list[i].n
	}
	return 0
}

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
