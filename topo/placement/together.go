package placement

import "math"

// takes asks whether a node takes so many leading pods, the guests that it has
// and one more.
func (p *planner) takes(node, lead, guest int32) bool {
	j := &p.job
	if p.barred[node] {
		return false
	}
	if cap(p.asked) < len(j.room.Fit) {
		p.asked = make([]int32, len(j.room.Fit))
	}
	p.asked = p.asked[:len(j.room.Fit)]
	for _, m := range p.fixed {
		if m.Node == node {
			lead++
		}
	}
	// A node that takes the same number of any leading class takes as many of
	// a mixture: what pods ask for adds up.
	for _, class := range j.classes {
		clear(p.asked)
		p.asked[j.gang.Tasks[j.task[guest]].Class]++
		if p.guests[node] > 0 {
			for _, m := range p.seats {
				if m.Node == node {
					p.asked[j.gang.Tasks[j.task[m.Rank]].Class]++
				}
			}
		}
		p.asked[class] += lead
		if !p.together(node) {
			return false
		}
	}
	return true
}

// together asks about p.asked.
func (p *planner) together(node int32) bool {
	c := p.job.room
	sum := 0.0
	for class, n := range p.asked {
		switch fit := c.Fit[class][node]; {
		case n == 0:
		case n > fit:
			return false
		default:
			sum += float64(n) / float64(fit)
		}
	}
	const rounding = 1e-12
	return sum <= 1+rounding || c.Together != nil && c.Together(node, p.asked)
}

// loss is how many leading pods fewer a node takes with one guest more.
func (p *planner) loss(node, guest int32) int32 {
	if !p.takes(node, 0, guest) {
		return math.MaxInt32
	}
	lo, hi := int32(0), p.fit[node]+1
	if p.takes(node, p.fit[node], guest) {
		return 0
	}
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; p.takes(node, mid, guest) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return p.fit[node] - lo
}

// reserve seats the guests where they cost the fewest leading pods.
func (p *planner) reserve(first, last int32, n int) bool {
	j, seated := &p.job, 0
	best, least := None, int32(0)
	for _, rank := range j.pending[:n] {
		if j.lead[j.task[rank]] {
			continue
		}
		if seated++; seated > maxReserved {
			return false
		}
		if best < 0 || p.loss(best, rank) > 0 {
			best, least = None, math.MaxInt32
			for node := first; node < last && least > 0; node++ {
				if loss := p.loss(node, rank); loss < least {
					best, least = node, loss
				}
			}
			if best < 0 {
				return false
			}
			p.undo = append(p.undo, Member{Rank: int(p.fit[best]), Node: best})
			p.fit[best] -= least
		}
		p.sitDown(best, rank)
	}
	return true
}
