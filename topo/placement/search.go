package placement

// search is a plan in the making.
type search struct {
	tree   *Tree
	demand demand
	// require is the kind that must be around the gang; excluded nodes get none
	// of its pods.
	require  filter
	excluded []bool
	// base is how many primary pods each node takes before any is assigned.
	base []int32
	room *room
	pack packer
	// free are the primary ranks that go anywhere.
	free      []int32
	secondary *secondary
	// used marks the domains of a plan.
	used []bool
}

// Place assigns a node to every pod of a gang. It changes neither the gang nor
// the capacity; the plan is the caller's to keep. The error is why there is no
// plan, in a sentence for users.
func Place(t *Tree, g *Gang, c *Capacity) (Plan, error) {
	s, ok := t.searches.Get().(*search)
	if !ok {
		s = newSearch(t)
	}
	defer t.searches.Put(s)
	if err := s.demand.read(t, g, c); err != nil {
		return Plan{}, err
	}
	s.begin()
	d := &s.demand
	if s.attempt(len(d.pending)) {
		return s.plan(), nil
	}
	least := d.least()
	if n := s.most(least, len(d.pending)); n >= least {
		s.attempt(n)
		return s.plan(), nil
	}
	return Plan{}, s.reject(least)
}

func newSearch(t *Tree) *search {
	n := t.Len()
	s := &search{
		tree: t, room: newRoom(t), excluded: make([]bool, n), base: make([]int32, n),
		used: make([]bool, len(t.groups)+n-int(t.grouped)),
	}
	s.pack = packer{finder: &finder{room: s.room}, take: make([]int32, n)}
	s.secondary = newSecondary(&s.pack, &s.demand, s.excluded)
	return s
}

// begin notes where members are, which nodes are excluded, and how many primary
// pods the others take: of several classes the fewest, which holds for any
// mixture of them.
func (s *search) begin() {
	d, r := &s.demand, s.room
	clear(r.placed)
	clear(r.placedIn)
	for _, node := range d.at {
		if node >= 0 {
			r.addMembers(node, 1)
		}
	}
	r.block, r.free = int64(d.block), d.room.Free
	s.pack.prefer = s.tree.bit(d.gang.Prefer)
	s.restrict()
	copy(s.base, d.room.Fit[d.classes[0]])
	for _, class := range d.classes[1:] {
		for node, n := range d.room.Fit[class] {
			s.base[node] = min(s.base[node], n)
		}
	}
	for node, excluded := range s.excluded {
		if excluded || s.base[node] < 0 {
			s.base[node] = 0
		}
	}
}

// restrict finds the nodes that the gang avoids, and with a required kind those
// in no group of the kind or, if members are in one, in another. Members in
// several groups of the kind cannot be moved: what is left goes into these
// groups.
func (s *search) restrict() {
	g := s.demand.gang
	s.require = filter{around: s.tree.bit(g.Require), nodes: g.Require == kindNode}
	clear(s.excluded)
	for _, node := range g.Avoid {
		if node >= 0 && node < s.tree.nodes() {
			s.excluded[node] = true
		}
	}
	if g.Require == "" {
		return
	}
	members := map[int32]bool{}
	for _, node := range s.demand.at {
		if node >= 0 && s.required(node) >= 0 {
			members[s.required(node)] = true
		}
	}
	for node := range s.excluded {
		if in := s.required(int32(node)); in < 0 || len(members) > 0 && !members[in] {
			s.excluded[node] = true
		}
	}
	if len(members) > 1 {
		s.require = filter{}
	}
}

// required is the group of the required kind that a node is in, or the node if
// that is required; None if it is in none.
func (s *search) required(node int32) int32 {
	if s.require.nodes {
		return node
	}
	return s.tree.ancestor(s.tree.home[node], s.require.around)
}

// attempt plans the first n pending pods.
func (s *search) attempt(n int) bool {
	copy(s.room.fit, s.base)
	clear(s.pack.take)
	s.secondary.reset()
	s.pack.tail, s.pack.fixed, s.free = 0, s.pack.fixed[:0], s.free[:0]
	pending := s.demand.pending[:n]
	ok := n == 0 || s.placeBlocks(pending[n-1]) && s.placeFree(pending)
	for _, m := range s.pack.fixed {
		s.room.addMembers(m.Node, -1)
	}
	return ok
}

// placeFree plans an attempt's pods that go anywhere.
func (s *search) placeFree(pending []int32) bool {
	free, block := len(s.free), s.demand.block
	a := amount{blocks: int64(free / block), short: int64(free % block)}
	s.room.short = a.short
	s.room.sum()
	if len(s.demand.primary) < len(s.demand.at) {
		return s.secondary.place(a, pending, s.require)
	}
	if free == 0 {
		return true
	}
	if at, ok := s.pack.find(a, &s.require); ok {
		s.pack.put(at, a)
		return true
	}
	return s.pack.ungrouped(a, &s.require)
}

// most is the largest number of pending pods, from lo on and under hi, that
// fit, the lowest ranks first; lo-1 if even lo do not.
func (s *search) most(lo, hi int) int {
	lo--
	if len(s.demand.primary) == len(s.demand.at) {
		hi = int(min(int64(hi), s.bound()+int64(len(s.demand.pending)-len(s.free))+1))
	}
	// Without slices and secondary pods that is the answer.
	if hi-1 > lo {
		if s.attempt(hi - 1) {
			return hi - 1
		}
		hi--
	}
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; s.attempt(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// bound is the most primary pods that one group takes in which the gang may be.
func (s *search) bound() (most int64) {
	t, pods := s.tree, s.room.pods
	t.sum(pods, s.base, nil)
	if s.require.around == 0 {
		most = pods[0]
		for _, n := range s.base[t.grouped:] {
			most += int64(n)
		}
		return most
	}
	for i := range t.groups {
		if t.groups[i].around&s.require.around != 0 {
			most = max(most, pods[i])
		}
	}
	return most
}
