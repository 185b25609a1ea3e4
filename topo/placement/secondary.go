package placement

import (
	"math"
	"slices"
	"sort"
)

// Secondary pods are a master, parameter servers. They are assigned among the
// primary ones where they cost these nothing; if that is not possible, each goes
// where it costs the fewest of them, and the primary pods get what is left.
const (
	// maxTries bounds the tried groups of a tier.
	maxTries = 24
	// maxReserved bounds the secondary pods that are assigned before primary ones.
	maxReserved = 64
)

// secondary assigns the secondary pods of a gang.
type secondary struct {
	packer
	demand demand
	// excluded nodes get none of the gang's pods.
	excluded []bool
	tasks    []secondaryTask
	// assigned are the secondary pods with a node so far; on counts them by
	// node.
	assigned []Member
	on       []int32
	// before holds the number of primary pods that each node takes without secondary ones.
	before []int32
	// tried are targets that did not take the gang. After the first, cost is
	// how many primary pods a secondary one costs each group at least; before, it
	// is empty.
	tried []target
	cost  []int64
	// used marks the lowest groups of the gang, and pods is a buffer.
	used []bool
	pods []int32
}

// secondaryTask is a task's pending pods, and how many of them each group
// takes.
type secondaryTask struct {
	class int
	ranks []int32
	room  []int64
}

// place assigns the pending ranks; a counts the primary pods among them that go anywhere.
func (s *secondary) place(a amount, pending []int32) bool {
	s.read(pending)
	if a == (amount{}) && len(s.tasks) == 0 {
		return true
	}
	f := s.require
	if len(s.tasks) > 0 {
		f.beside = s
		copy(s.before, s.fit)
	}
	tries, tier := 0, -1
	for {
		at, ok := s.find(a, &f)
		if !ok {
			return s.placeAnywhere(a)
		}
		if s.placeIn(at, a) {
			return true
		}
		s.tried = append(s.tried, at)
		if len(s.cost) == 0 {
			s.findCosts()
		}
		now := 0 // For a node.
		if at.node < 0 {
			now = s.tree.groups[at.group].Tier
		}
		if now != tier {
			tries, tier = 0, now
		}
		if tries++; tries > maxTries {
			f.tier, s.tried = tier+1, s.tried[:0]
		}
	}
}

// read collects the secondary tasks among the pending ranks.
func (s *secondary) read(pending []int32) {
	d := &s.demand
	s.tasks = s.tasks[:0]
	for i, rank := range pending {
		task := d.task[rank]
		if d.isPrimary[task] {
			continue
		}
		if i == 0 || d.task[pending[i-1]] != task {
			class, room := d.gang.Tasks[task].Class, make([]int64, len(s.tree.groups))
			s.tree.sum(room, d.room.Fit[class], s.excluded)
			s.tasks = append(s.tasks, secondaryTask{class: class, ranks: pending[i:i], room: room})
		}
		last := &s.tasks[len(s.tasks)-1]
		last.ranks = last.ranks[:len(last.ranks)+1]
	}
}

// placeIn places the primary pods in a target, and the secondary ones beside
// them.
func (s *secondary) placeIn(at target, a amount) bool {
	first, last := s.tree.span(at)
	s.put(at, a)
	if s.assignAll(first, last) {
		return true
	}
	s.reset(s.before)
	if s.reserve(first, last) {
		s.sum()
		if s.holds(at, a) {
			s.put(at, a)
			return true
		}
	}
	s.reset(s.before)
	s.sum()
	return false
}

// placeAnywhere uses nodes in no group too.
func (s *secondary) placeAnywhere(a amount) bool {
	root := target{None, 0}
	switch {
	case len(s.tasks) == 0:
		return s.ungrouped(a)
	case s.require != (filter{}):
		return false
	case s.holds(root, a):
		s.put(root, a)
	case !s.ungrouped(a):
		return false
	}
	return s.assignAll(0, s.tree.nodes())
}

// reset begins with what each node takes and with no pod assigned.
func (s *secondary) reset(fit []int32) {
	copy(s.fit, fit)
	clear(s.take)
	clear(s.on)
	s.assigned, s.tail = s.assigned[:0], 0
}

// assignAll assigns the secondary pods to nodes from first up to last. Nodes
// and groups that the gang uses come before others, and nodes on which a
// secondary pod takes no primary pod's room before those on which it does.
func (s *secondary) assignAll(first, last int32) bool {
	clear(s.used)
	for node := first; node < min(last, s.tree.grouped); node++ {
		if s.take[node] > 0 || s.placed[node] > 0 {
			s.used[s.tree.home[node]] = true
		}
	}
	return !slices.ContainsFunc(s.tasks, func(task secondaryTask) bool { return !s.assignTask(first, last, task) })
}

func (s *secondary) assignTask(first, last int32, task secondaryTask) bool {
	ranks := task.ranks
	for _, pass := range [...]struct {
		distance int
		full     bool
	}{{0, true}, {1, true}, {0, false}, {1, false}, {2, true}, {2, false}} {
		for node := first; node < last && len(ranks) > 0; node++ {
			if s.distance(node) > pass.distance {
				continue
			}
			primary := s.take[node]
			if pass.full {
				primary = max(primary, s.fit[node])
			}
			for len(ranks) > 0 && s.takes(node, primary, task.class) {
				s.assign(node, ranks[0])
				ranks = ranks[1:]
			}
		}
	}
	return len(ranks) == 0
}

func (s *secondary) assign(node, rank int32) {
	s.assigned = append(s.assigned, Member{Rank: int(rank), Node: node})
	s.on[node]++
}

// distance returns how far from the gang a node is: 0 if it has pods of it, 1 if its
// lowest group does, else 2.
func (s *secondary) distance(node int32) int {
	switch {
	case s.take[node] > 0 || s.placed[node] > 0 || s.on[node] > 0:
		return 0
	case node < s.tree.grouped && s.used[s.tree.home[node]]:
		return 1
	}
	return 2
}

// reserve assigns the secondary pods where they cost the fewest primary ones.
func (s *secondary) reserve(first, last int32) bool {
	best, reserved := None, 0
	for _, task := range s.tasks {
		if reserved += len(task.ranks); reserved > maxReserved {
			return false
		}
		for _, rank := range task.ranks {
			if best < 0 || s.loss(best, task.class) > 0 {
				loss := int32(0)
				if best, loss = s.cheapest(first, last, task.class); best < 0 {
					return false
				}
				s.fit[best] -= loss
			}
			s.assign(best, rank)
		}
	}
	return true
}

// cheapest returns the first of the nodes that lose the fewest primary pods to one
// of a class, and how many.
func (s *secondary) cheapest(first, last int32, class int) (best, least int32) {
	best, least = None, math.MaxInt32
	for node := first; node < last && least > 0; node++ {
		if loss := s.loss(node, class); loss < least {
			best, least = node, loss
		}
	}
	return best, least
}

// takes reports whether a node takes this number of primary pods, its secondary ones, and one more
// of a class.
func (s *secondary) takes(node, primary int32, class int) bool {
	if s.excluded[node] {
		return false
	}
	d := &s.demand
	for _, m := range s.fixed {
		if m.Node == node {
			primary++
		}
	}
	s.pods = slices.Grow(s.pods[:0], len(d.room.Fit))[:len(d.room.Fit)]
	// A node that takes the same number of any primary class takes as many of
	// a mixture: what pods ask for adds up.
	for _, other := range d.classes {
		clear(s.pods)
		s.pods[class]++
		if s.on[node] > 0 {
			for _, m := range s.assigned {
				if m.Node == node {
					s.pods[d.gang.Tasks[d.task[m.Rank]].Class]++
				}
			}
		}
		s.pods[other] += primary
		if !d.room.holds(node, s.pods) {
			return false
		}
	}
	return true
}

// loss returns how many primary pods fewer a node takes with one pod more of a
// class.
func (s *secondary) loss(node int32, class int) int32 {
	fit := s.fit[node]
	loss := sort.Search(int(fit)+1, func(n int) bool {
		return s.takes(node, fit-int32(n), class) //nolint:gosec // At most fit.
	})
	if loss > int(fit) {
		return math.MaxInt32
	}
	return int32(loss) //nolint:gosec // At most fit.
}

// findCosts finds for every group the fewest primary pods that a secondary one
// costs.
func (s *secondary) findCosts() {
	groups := s.tree.groups
	s.cost = slices.Grow(s.cost, len(groups))[:len(groups)]
	clear(s.cost)
	for _, task := range s.tasks {
		least := slices.Repeat([]int32{math.MaxInt32}, len(groups))
		for i := len(groups) - 1; i >= 0; i-- {
			g := &groups[i]
			if g.lowest {
				_, least[i] = s.cheapest(g.First, g.End, task.class)
			}
			if g.parent >= 0 {
				least[g.parent] = min(least[g.parent], least[i])
			}
			s.cost[i] = max(s.cost[i], int64(least[i]))
		}
	}
}

// admits is true if a target that holds an amount has not been tried, and has
// room for the secondary pods: for all of a task without the primary ones, and
// beside these, once costs are known, for one.
func (s *secondary) admits(at target, a amount) bool {
	if slices.Contains(s.tried, at) {
		return false
	}
	costed := len(s.cost) > 0
	for _, task := range s.tasks {
		room := task.room[at.group]
		if at.node >= 0 {
			room = int64(s.demand.room.Fit[task.class][at.node])
		}
		if room < int64(len(task.ranks)) ||
			costed && at.node >= 0 && int64(s.fit[at.node]-s.loss(at.node, task.class)) < s.total(a) {
			return false
		}
	}
	return !costed || at.node >= 0 || s.block > 1 || s.space[at.group].slots-s.cost[at.group] >= a.slots()
}
