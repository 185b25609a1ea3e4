package placement

// part is what is to be placed in a group: whole blocks, and as many pods of a
// last, shorter one.
type part struct{ blocks, short int64 }

// need is how many slots hold the part.
func (w part) need() int64 {
	if w.short > 0 {
		return w.blocks + 1
	}
	return w.blocks
}

// total is how many pods a part is.
func (p *planner) total(w part) int64 { return w.blocks*int64(p.job.block) + w.short }

// sum adds up what the nodes take, group by group. A block goes into one
// lowest group, so what is left over there counts for nothing but the shorter
// block.
func (p *planner) sum() {
	t, block := p.tree, int64(p.job.block)
	clear(p.pods)
	clear(p.slots)
	clear(p.spare)
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := &t.groups[i]
		if g.lowest {
			var pods int64
			for _, n := range p.fit[g.first:g.last] {
				pods += int64(n)
			}
			p.pods[i], p.slots[i] = pods, pods
			if block > 1 {
				p.slots[i] = pods / block
				p.spare[i] = p.short > 0 && pods%block >= p.short
			}
		}
		if g.parent >= 0 {
			p.pods[g.parent] += p.pods[i]
			p.slots[g.parent] += p.slots[i]
			p.spare[g.parent] = p.spare[g.parent] || p.spare[i]
		}
	}
}

// holds tells whether a group takes a part.
func (p *planner) holds(g int32, w part) bool {
	have, need := p.slots[g], w.need()
	if w.short > 0 && p.spare[g] {
		have++
	}
	return have >= need
}
