package placement

// Largest is, for every kind, the widest first, the group that takes the most
// pods of a class, with fit pods on each node; the first of several. Its Pods
// are the largest gang of one pod a rank that the kind can hold.
func (p *Planner) Largest(fit []int32) []Hole {
	t := p.tree
	for node := range p.fit {
		p.fit[node] = 0
		if node < len(fit) {
			p.fit[node] = max(0, fit[node])
		}
	}
	p.job.block, p.short = 1, 0
	p.sum()
	kinds := t.Kinds()
	holes := make([]Hole, len(kinds))
	for k, kind := range kinds {
		holes[k].Kind = kind
		for i := range t.groups {
			g := &t.groups[i]
			if g.kind < 0 || t.kinds[g.kind] != kind {
				continue
			}
			if pods := int(p.pods[i]); pods > holes[k].Pods || holes[k].Name == "" {
				holes[k] = Hole{Kind: kind, Name: g.name, Pods: pods}
			}
		}
	}
	return holes
}
