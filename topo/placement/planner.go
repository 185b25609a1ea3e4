package placement

import "github.com/heddle-dev/heddle/api/topology/v1alpha1"

const kindNode = v1alpha1.KindNode

// planner makes plans on one map, one after another; between plans it keeps
// its memory. It is not for concurrent use.
type planner struct {
	tree *Tree
	job  job

	// Of a gang: barred nodes get none of its pods; base is how many leading
	// pods each node takes. mates are the members that have a node, by node;
	// held are the same by group.
	barred []bool
	base   []int32
	mates  []int32
	held   []int32
	bounds filter

	// Of an attempt: fit is what the nodes still take, the others what the
	// groups do.
	fit   []int32
	pods  []int64
	slots []int64
	spare []bool
	short int64
	// take is how many leading pods each node gets, and tail one past the last
	// node of the lowest group that gets the shorter block.
	take []int32
	tail int32
	// free are leading ranks that go anywhere; fixed are those that go where
	// their block is, and seats the guests.
	free         []int32
	fixed, seats []Member
	guests       []int32

	groups, nodes picker
	// Of gangs with guests.
	asked  []int32
	cost   []int64
	costly bool
	banned []target
	undo   []Member
	used   []bool
	// wanted are the guests of each task, sample one of them, and guestRoom
	// how many each group takes.
	wanted    []int64
	sample    []int32
	guestRoom []int64
	least     []int64
}

// newPlanner plans on a map.
func newPlanner(t *Tree) *planner {
	n, g := t.Len(), len(t.groups)
	return &planner{
		tree:   t,
		barred: make([]bool, n), base: make([]int32, n), mates: make([]int32, n), held: make([]int32, g),
		fit: make([]int32, n), pods: make([]int64, g), slots: make([]int64, g), spare: make([]bool, g),
		take: make([]int32, n), guests: make([]int32, n), cost: make([]int64, g), used: make([]bool, g),
	}
}

// Place assigns a node to every pod of a gang. It changes neither the gang nor
// the capacity; the plan is the caller's to keep. The error is why there is no
// plan, in a sentence for users.
func Place(t *Tree, g *Gang, c *Capacity) (Plan, error) {
	p, ok := t.planners.Get().(*planner)
	if !ok {
		p = newPlanner(t)
	}
	defer t.planners.Put(p)
	plan, refusal := p.place(g, c)
	if refusal != nil {
		return plan, refusal
	}
	return plan, nil
}

func (p *planner) place(g *Gang, c *Capacity) (Plan, *Refusal) {
	j := &p.job
	if refusal := j.read(p.tree, g, c); refusal != nil {
		return Plan{}, refusal
	}
	p.join()
	p.restrict()
	p.load()
	if p.attempt(len(j.pending)) {
		return p.plan(), nil
	}
	least := max(0, j.want()-j.placed())
	if n := p.most(least, len(j.pending)); n >= least {
		p.attempt(n)
		return p.plan(), nil
	}
	return Plan{}, p.refuse(least)
}

// join notes where members are.
func (p *planner) join() {
	clear(p.mates)
	clear(p.held)
	for _, node := range p.job.at {
		if node >= 0 {
			p.mate(node, 1)
		}
	}
}

// mate adds members to a node. A node in no group is near to no other.
func (p *planner) mate(node, n int32) {
	p.mates[node] += n
	if node >= p.tree.grouped {
		return
	}
	for g := p.tree.home[node]; g >= 0; g = p.tree.groups[g].parent {
		p.held[g] += n
	}
}

// load finds how many leading pods each node takes: of several classes the
// fewest, which holds for any mixture of them.
func (p *planner) load() {
	for i, class := range p.job.classes {
		fit := p.job.room.Fit[class]
		if i == 0 {
			copy(p.base, fit)
			continue
		}
		for node, n := range fit {
			p.base[node] = min(p.base[node], n)
		}
	}
	for node, barred := range p.barred {
		if barred || p.base[node] < 0 {
			p.base[node] = 0
		}
	}
}

// attempt plans the first n pending pods.
func (p *planner) attempt(n int) bool {
	copy(p.fit, p.base)
	clear(p.take)
	clear(p.guests)
	p.undo = p.undo[:0]
	p.tail, p.free, p.seats, p.fixed = 0, p.free[:0], p.seats[:0], p.fixed[:0]
	ok := n == 0 || p.fix(n) && p.rest(n)
	for _, m := range p.fixed {
		p.mate(m.Node, -1)
	}
	return ok
}

// rest plans an attempt's pods that are not fixed.
func (p *planner) rest(n int) bool {
	block := p.job.block
	w := part{blocks: int64(len(p.free) / block), short: int64(len(p.free) % block)}
	p.short = w.short
	p.sum()
	if p.job.guests {
		return p.mixed(w, n)
	}
	if len(p.free) == 0 {
		return true
	}
	if at, ok := p.find(w, &p.bounds); ok {
		p.put(at, w)
		return true
	}
	return p.outside(w)
}

// most is the largest number of pending pods, from lo on and under hi, that
// fit, the lowest ranks first; lo-1 if even lo do not.
func (p *planner) most(lo, hi int) int {
	lo--
	if !p.job.guests {
		hi = int(min(int64(hi), p.bound()+int64(len(p.job.pending))-int64(len(p.free))+1))
	}
	// Without slices and guests that is the answer.
	if hi-1 > lo {
		if p.attempt(hi - 1) {
			return hi - 1
		}
		hi--
	}
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; p.attempt(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// bound is the most leading pods that one group takes in which the gang may be.
func (p *planner) bound() int64 {
	t, most := p.tree, int64(0)
	copy(p.fit, p.base)
	p.sum()
	if p.bounds.inside == 0 {
		all := p.pods[0]
		for _, n := range p.fit[t.grouped:] {
			all += int64(n)
		}
		return all
	}
	for i := range t.groups {
		if t.groups[i].inside&p.bounds.inside != 0 {
			most = max(most, p.pods[i])
		}
	}
	return most
}
