package fabric

// votes count strings. The zero value is empty.
type votes struct {
	list []vote
	// index is for long lists only: most have one to ten entries.
	index map[string]int
}

type vote struct {
	id string
	n  int32
}

// indexed is the length from which a list has an index.
const indexed = 24

func (v *votes) reset() {
	v.list = v.list[:0]
	v.index = nil
}

// add counts n votes more for id.
func (v *votes) add(id string, n int32) {
	if i := v.find(id); i >= 0 {
		v.list[i].n += n
		return
	}
	v.list = append(v.list, vote{id, n})
	switch last := len(v.list) - 1; {
	case v.index != nil:
		v.index[id] = last
	case len(v.list) == indexed:
		v.index = make(map[string]int, 2*indexed)
		for i, one := range v.list {
			v.index[one.id] = i
		}
	}
}

func (v *votes) find(id string) int {
	if v.index != nil {
		if i, ok := v.index[id]; ok {
			return i
		}
		return -1
	}
	for i := range v.list {
		if v.list[i].id == id {
			return i
		}
	}
	return -1
}

func (v *votes) count(id string) int32 {
	if i := v.find(id); i >= 0 {
		return v.list[i].n
	}
	return 0
}

// most is the ID with the most votes, the least among equals, "" without votes.
func (v *votes) most() string {
	var best vote
	for _, one := range v.list {
		if one.n > best.n || one.n == best.n && one.id < best.id {
			best = one
		}
	}
	return best.id
}

// tied reports whether others have as many votes as id.
func (v *votes) tied(id string) bool {
	n, equals := v.count(id), 0
	for _, one := range v.list {
		if one.n == n {
			equals++
		}
	}
	return equals > 1
}

// foreign reports whether another has at least twice the votes of id.
func (v *votes) foreign(id string) bool {
	own := v.count(id)
	for _, one := range v.list {
		if one.id != id && one.n >= 2*own {
			return true
		}
	}
	return false
}
