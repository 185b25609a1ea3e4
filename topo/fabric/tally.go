package fabric

// tally counts votes. The zero value is empty.
type tally struct {
	list []votes
	// index is for long lists only: most have one to ten entries.
	index map[string]int
}

type votes struct {
	id string
	n  int32
}

// indexed is the length from which a list has an index.
const indexed = 24

func (t *tally) reset() {
	t.list = t.list[:0]
	t.index = nil
}

// add counts n votes more for id; n may be negative. What falls to none is
// forgotten.
func (t *tally) add(id string, n int32) {
	i := t.find(id)
	if i < 0 {
		if n == 0 {
			return
		}
		t.list = append(t.list, votes{id, n})
		i = len(t.list) - 1
		switch {
		case t.index != nil:
			t.index[id] = i
		case len(t.list) == indexed:
			t.index = make(map[string]int, 2*indexed)
			for j, v := range t.list {
				t.index[v.id] = j
			}
		}
		return
	}
	t.list[i].n += n
	if t.list[i].n != 0 {
		return
	}
	last := len(t.list) - 1
	t.list[i] = t.list[last]
	if t.index != nil {
		t.index[t.list[i].id] = i
		delete(t.index, id)
	}
	t.list = t.list[:last]
}

func (t *tally) find(id string) int {
	if t.index != nil {
		if i, ok := t.index[id]; ok {
			return i
		}
		return -1
	}
	for i := range t.list {
		if t.list[i].id == id {
			return i
		}
	}
	return -1
}

func (t *tally) count(id string) int32 {
	if i := t.find(id); i >= 0 {
		return t.list[i].n
	}
	return 0
}

// most is who has the most votes, the least ID among equals, "" if nobody has.
func (t *tally) most() string {
	var best votes
	for _, v := range t.list {
		if v.n > best.n || v.n == best.n && v.id < best.id {
			best = v
		}
	}
	return best.id
}

// tied tells whether others have as many votes as id.
func (t *tally) tied(id string) bool {
	n, equals := t.count(id), 0
	for _, v := range t.list {
		if v.n == n {
			equals++
		}
	}
	return equals > 1
}

// foreign tells whether another has at least twice the votes of id.
func (t *tally) foreign(id string) bool {
	own := t.count(id)
	for _, v := range t.list {
		if v.id != id && v.n >= 2*own {
			return true
		}
	}
	return false
}
