package placement

// amount is an amount to place: whole blocks, and the pods of a last, shorter one.
type amount struct{ blocks, short int64 }

// slots returns how many slots of a block hold the amount.
func (a amount) slots() int64 { return a.blocks + min(a.short, 1) }

// target is a node, or a group if node is None.
type target struct{ node, group int32 }

// span returns the nodes of a target: from first up to last, without it.
func (t *Tree) span(at target) (first, last int32) {
	if at.node >= 0 {
		return at.node, at.node + 1
	}
	return t.groups[at.group].First, t.groups[at.group].End
}

// filter selects the targets that may hold the gang; the zero value selects
// all.
type filter struct {
	// around is a mask of kinds; a group of one of them must be around. 0 is any.
	around uint64
	// nodes selects nodes, and kind groups of a kind; 0 is any.
	nodes bool
	kind  uint64
	// tier is the lowest that will do.
	tier int
	// beside are secondary tasks for which the target must have room as well.
	beside *secondary
}

// room holds the free room of nodes and groups at one point of a search, and the nodes of placed
// members.
type room struct {
	tree *Tree
	// block is the number of pods in one lowest group, and short the number in the shorter block,
	// or 0.
	block, short int64
	// fit holds the number of primary pods that each node takes; free is Capacity.Free.
	fit, free []int32
	// space holds the room of each group.
	space []item
	// placed are the members on each node, and placedIn those in each group.
	placed, placedIn []int32
	// require selects the targets that may hold the gang; prefer is the kind that it
	// prefers, 0 for none. groups chooses among groups.
	require filter
	prefer  uint64
	groups  picker
}

// addMembers adds placed members to a node. A node in no group is close to no
// other.
func (r *room) addMembers(node, n int32) {
	r.placed[node] += n
	if node >= r.tree.grouped {
		return
	}
	for g := r.tree.home[node]; g >= 0; g = r.tree.groups[g].parent {
		r.placedIn[g] += n
	}
}

// sum adds up what the nodes take, group by group. A block goes into one
// lowest group, so what is left over there counts for nothing but the shorter
// block.
func (r *room) sum() {
	clear(r.space)
	for i := len(r.tree.groups) - 1; i >= 0; i-- {
		g, in := &r.tree.groups[i], &r.space[i]
		if g.lowest {
			for _, n := range r.fit[g.First:g.End] {
				in.room += int64(n)
			}
			in.slots, in.spare = in.room/r.block, r.short > 0 && in.room%r.block >= r.short
		}
		if g.parent >= 0 {
			out := &r.space[g.parent]
			out.room, out.slots, out.spare = out.room+in.room, out.slots+in.slots, out.spare || in.spare
		}
		in.id = int32(i) //nolint:gosec // Every group has its own name in memory.
	}
}

// total returns how many pods an amount is.
func (r *room) total(a amount) int64 { return a.blocks*r.block + a.short }

// holds is true if a target takes an amount.
func (r *room) holds(at target, a amount) bool {
	if at.node >= 0 {
		return int64(r.fit[at.node]) >= r.total(a)
	}
	in := &r.space[at.group]
	return in.slots >= a.slots() || a.short > 0 && in.spare && in.slots >= a.blocks
}

// fuller is true if node a, which takes as many pods as b, has less free or, if
// that is the same, less room around it.
func (r *room) fuller(a, b int32) bool {
	if r.free[a] != r.free[b] {
		return r.free[a] < r.free[b]
	}
	return r.fullerGroup(r.tree.home[a], r.tree.home[b])
}

// fullerGroup is true if group a has less room than b or, if they have the
// same, less around it.
func (r *room) fullerGroup(a, b int32) bool {
	for a != b && a >= 0 && b >= 0 {
		if r.space[a].room != r.space[b].room {
			return r.space[a].room < r.space[b].room
		}
		a, b = r.tree.groups[a].parent, r.tree.groups[b].parent
	}
	return false
}

// children appends the groups right inside g, with or without members.
func (r *room) children(items []item, g int32, members bool) []item {
	t := r.tree
	for c := g + 1; c < t.groups[g].next; c = t.groups[c].next {
		if members == (r.placedIn[c] > 0) {
			items = append(items, r.space[c])
		}
	}
	return items
}

// accepts is true if a target holds an amount and may hold the gang.
func (r *room) accepts(at target, a amount, f *filter) bool {
	g := &r.tree.groups[at.group]
	if !r.holds(at, a) || f.around != 0 && g.around&f.around == 0 ||
		at.node < 0 && (f.nodes || f.kind != 0 && (g.kind < 0 || f.kind != 1<<g.kind) || g.Tier < f.tier) {
		return false
	}
	return f.beside == nil || f.beside.admits(at, a)
}

// find returns the target for the gang: beside its members if there are any, else of
// the preferred kind, else the tightest.
func (r *room) find(a amount, f *filter) (target, bool) {
	if r.prefer != 0 && f.tier == 0 {
		preferred := *f
		preferred.kind = r.prefer
		if at, ok := r.tightest(0, a, &preferred); ok {
			return at, true
		}
	}
	return r.tightest(0, a, f)
}

// tightest returns the group or node of the lowest tier inside g that holds an
// amount and all members in g. Of several it is the one that holds it in the
// fewest groups, then the one with the least room, then the one with the least
// room around it, then the first. If g holds the amount there is always one
// without a filter.
func (r *room) tightest(g int32, a amount, f *filter) (target, bool) {
	if f.kind == 0 && f.tier == 0 {
		in := &r.tree.groups[g]
		if node := r.tightestNode(in.First, in.End, r.placedIn[g], a, f); node >= 0 {
			return target{node, r.tree.home[node]}, true
		}
	}
	best := r.tightestGroup(g, a, f)
	return target{None, best}, best >= 0
}

func (r *room) tightestNode(first, last, members int32, a amount, f *filter) int32 {
	pods := r.total(a)
	best, least := None, int32(0)
	for node := first; node < last; node++ {
		n := r.fit[node]
		if int64(n) < pods || best >= 0 && (n > least || n == least && !r.fuller(node, best)) {
			continue
		}
		if r.placed[node] >= members && r.accepts(target{node, r.tree.home[node]}, a, f) {
			best, least = node, n
		}
	}
	return best
}

func (r *room) tightestGroup(g int32, a amount, f *filter) int32 {
	groups, best, parts := r.tree.groups, None, 0
	for i := g; i < groups[g].next; i++ {
		switch {
		case groups[i].remainder && i != g || best >= 0 && groups[i].Tier > groups[best].Tier ||
			r.placedIn[i] < r.placedIn[g] || !r.accepts(target{None, i}, a, f):
			continue
		case best < 0 || groups[i].Tier < groups[best].Tier:
			best, parts = i, 0
			continue
		case parts == 0:
			parts = r.parts(best, a)
		}
		if n := r.parts(i, a); n < parts || n == parts && r.fullerGroup(i, best) {
			best, parts = i, n
		}
	}
	return best
}

// parts returns how many of the groups right inside one hold an amount; 1 if there
// are none.
func (r *room) parts(g int32, a amount) int {
	if r.tree.groups[g].lowest {
		return 1
	}
	r.groups.items = r.children(r.groups.items[:0], g, false)
	return r.groups.fewest(a)
}
