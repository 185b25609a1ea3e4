package placement

import (
	"math"
	"slices"
)

// countGuests prepares the search for room for the guests among the first n
// pending pods.
func (p *planner) countGuests(n int) {
	j := &p.job
	p.wanted = append(p.wanted[:0], make([]int64, len(j.gang.Tasks))...)
	p.sample = append(p.sample[:0], make([]int32, len(j.gang.Tasks))...)
	for _, rank := range j.pending[:n] {
		if task := j.task[rank]; !j.lead[task] {
			p.wanted[task]++
			p.sample[task] = rank
		}
	}
	groups := len(p.tree.groups)
	p.guestRoom = slices.Grow(p.guestRoom[:0], groups*len(p.wanted))[:groups*len(p.wanted)]
	clear(p.guestRoom)
	for task, wanted := range p.wanted {
		if wanted > 0 {
			p.addGuests(p.guestRoom[task*groups:(task+1)*groups], j.room.Fit[j.gang.Tasks[task].Class])
		}
	}
}

// addGuests adds up by group how many guests nodes take.
func (p *planner) addGuests(room []int64, fit []int32) {
	t := p.tree
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := &t.groups[i]
		if g.lowest {
			for node := g.first; node < g.last; node++ {
				if !p.barred[node] {
					room[i] += int64(max(fit[node], 0))
				}
			}
		}
		if g.parent >= 0 {
			room[g.parent] += room[i]
		}
	}
}

// price finds for every group the fewest leading pods that a guest costs.
func (p *planner) price() {
	t := p.tree
	p.costly = true
	clear(p.cost)
	for task, wanted := range p.wanted {
		if wanted > 0 {
			p.priceTask(t, p.sample[task])
		}
	}
}

func (p *planner) priceTask(t *Tree, guest int32) {
	p.least = slices.Grow(p.least[:0], len(t.groups))[:len(t.groups)]
	for i := range p.least {
		p.least[i] = math.MaxInt32
	}
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := &t.groups[i]
		if g.lowest {
			for node := g.first; node < g.last && p.least[i] > 0; node++ {
				p.least[i] = min(p.least[i], int64(p.loss(node, guest)))
			}
		}
		if g.parent >= 0 {
			p.least[g.parent] = min(p.least[g.parent], p.least[i])
		}
		p.cost[i] = max(p.cost[i], p.least[i])
	}
}

// welcomes tells whether a target may hold the guests.
func (p *planner) welcomes(at target) bool {
	if slices.Contains(p.banned, at) {
		return false
	}
	groups := len(p.tree.groups)
	for task, wanted := range p.wanted {
		switch {
		case wanted == 0:
		case at.node < 0 && p.guestRoom[task*groups+int(at.group)] < wanted:
			return false
		case at.node >= 0 && int64(p.job.room.Fit[p.job.gang.Tasks[task].Class][at.node]) < wanted:
			return false
		}
	}
	return true
}

// sparesNode tells whether a node that holds a part does so with a guest.
func (p *planner) sparesNode(node int32, w part, f *filter) bool {
	if !f.guests || !p.costly {
		return true
	}
	for task, wanted := range p.wanted {
		if wanted > 0 && int64(p.fit[node])-int64(p.loss(node, p.sample[task])) < p.total(w) {
			return false
		}
	}
	return true
}

// spares tells whether a group that holds a part does so with a guest.
func (p *planner) spares(g int32, w part, f *filter) bool {
	if !f.guests || !p.costly || p.job.block > 1 {
		return true
	}
	return p.slots[g]-p.cost[g] >= w.need()
}
