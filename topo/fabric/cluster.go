package fabric

import "slices"

// cluster groups items (nodes, groups of leaves) by the features they share
// (leaves, spines): the four votes of the package comment. set and settle
// recompute only what a change can reach.
type cluster[T any] struct {
	features map[string]*feature[T]
	// recent are the features found last, by hint: neighbors by name are
	// neighbors by cable, and come one after the other.
	recent [recents]*feature[T]
	// serial numbers the features, to order co-occurrences; results do not
	// depend on it.
	serial uint32
	// touched are the features whose cables changed since the last settle,
	// moved the items whose weights did.
	touched []*feature[T]
	moved   []*item[T]
}

type feature[T any] struct {
	id     string
	serial uint32
	// mass is how many cables end here.
	mass  int32
	links []link[T]
	// near are the features that share items, sorted by serial; next is where
	// the one that is met next probably is.
	near []near[T]
	next int
	// anchor and home are outcomes of votes 1 and 3.
	anchor, home string
	// claims are the cables by their items' groups.
	claims tally
	// hints are the cables by their hint; usual is that of more than half of
	// them, or noHint.
	hints []hinted
	usual int32

	// standings are what a leaf is to the cells that are judged now, one for
	// each judge.
	standings [workers]standing

	isTouched, inAnchor, inHome, inClaim bool
	// isTurned tells that usual changed since the last settle.
	isTurned bool
}

const recents = 256

// Room that a leaf of a fat tree needs anyway.
const usualLinks, usualNear = 32, 16

// noHint is the hint of a feature whose cables have no usual one.
const noHint = -1

type hinted struct {
	hint int32
	n    int32
}

type link[T any] struct {
	item *item[T]
	n    int32
}

type near[T any] struct {
	feature *feature[T]
	serial  uint32
	n       int32
}

type item[T any] struct {
	owner T
	// cables are the item's, weights the same by feature.
	cables  []cable[T]
	weights []weight[T]
	// vote and key are outcomes of votes 2 and 4; key is empty without
	// features.
	vote, key string

	isMoved, inVote, inKey bool
}

// cable is one that leads to a feature. Its hint is where on the item it
// starts, the rail: a leaf usually has the cables of one rail.
type cable[T any] struct {
	feature *feature[T]
	hint    int32
}

type weight[T any] struct {
	feature *feature[T]
	n       int32
}

func newCluster[T any]() *cluster[T] {
	return &cluster[T]{features: map[string]*feature[T]{}}
}

// of is the feature with that ID, made if need be. It lasts as long as an item
// has a cable to it.
func (c *cluster[T]) of(id string) *feature[T] {
	f := c.features[id]
	if f == nil {
		c.serial++
		f = &feature[T]{
			id: id, serial: c.serial, usual: noHint,
			links: make([]link[T], 0, usualLinks), near: make([]near[T], 0, usualNear),
		}
		c.features[id] = f
	}
	return f
}

// set gives an item new cables, made with of. An empty list takes the item
// away.
func (c *cluster[T]) set(it *item[T], cables []cable[T]) {
	c.account(it, -1)
	it.cables = cables
	it.weights = make([]weight[T], 0, len(cables))
next:
	for _, one := range cables {
		for i := range it.weights {
			if it.weights[i].feature == one.feature {
				it.weights[i].n++
				continue next
			}
		}
		it.weights = append(it.weights, weight[T]{one.feature, 1})
	}
	c.account(it, 1)
	if !it.isMoved {
		it.isMoved = true
		c.moved = append(c.moved, it)
	}
}

// account adds an item's cables to its features, or takes them away.
func (c *cluster[T]) account(it *item[T], sign int32) {
	for i, w := range it.weights {
		f := w.feature
		c.touch(f)
		f.mass += sign * w.n
		if sign > 0 {
			f.links = append(f.links, link[T]{it, w.n})
		} else {
			f.unlink(it)
		}
		for _, o := range it.weights[:i] {
			n := sign * min(w.n, o.n)
			f.meet(o.feature, n)
			o.feature.meet(f, n)
		}
	}
	for _, w := range it.cables {
		w.feature.hint(w.hint, sign)
	}
}

func (f *feature[T]) hint(hint, n int32) {
	i := slices.IndexFunc(f.hints, func(h hinted) bool { return h.hint == hint })
	if i < 0 {
		f.hints = append(f.hints, hinted{hint, n})
		return
	}
	if f.hints[i].n += n; f.hints[i].n == 0 {
		f.hints = slices.Delete(f.hints, i, i+1)
	}
}

func (c *cluster[T]) touch(f *feature[T]) {
	if !f.isTouched {
		f.isTouched = true
		c.touched = append(c.touched, f)
	}
}

func (f *feature[T]) unlink(it *item[T]) {
	i := slices.IndexFunc(f.links, func(l link[T]) bool { return l.item == it })
	if i < 0 {
		return
	}
	last := len(f.links) - 1
	f.links[i] = f.links[last]
	f.links[last] = link[T]{}
	f.links = f.links[:last]
}

// meet changes how many cables f and o have from the same items.
func (f *feature[T]) meet(o *feature[T], n int32) {
	i := f.seek(o.serial)
	f.next = i + 1
	switch {
	case i == len(f.near) || f.near[i].serial != o.serial:
		f.near = slices.Insert(f.near, i, near[T]{o, o.serial, n})
	case f.near[i].n+n == 0:
		f.near = slices.Delete(f.near, i, i+1)
	default:
		f.near[i].n += n
	}
}

// seek finds the place of a feature in near. It is the inner loop of a first
// tree: the nodes of a group meet the same leaves, in the same order.
func (f *feature[T]) seek(serial uint32) int {
	if f.next >= len(f.near) {
		f.next = 0
	}
	if f.next < len(f.near) && f.near[f.next].serial == serial {
		return f.next
	}
	i, end := 0, len(f.near)
	for i < end {
		if half := int(uint(i+end) >> 1); f.near[half].serial < serial {
			i = half + 1
		} else {
			end = half
		}
	}
	return i
}
