package placement

// LargestFree is, for every kind, the widest first, the group that takes the
// most pods of a class, with fit pods on each node; the first of several. Its
// Pods are the largest gang of one pod a rank that the kind can hold.
func (t *Tree) LargestFree(fit []int32) []Domain {
	pods := make([]int64, len(t.groups))
	t.sum(pods, fit)
	kinds := t.Kinds()
	domains := make([]Domain, len(kinds))
	for k, kind := range kinds {
		domains[k].Kind = kind
		for i := range t.groups {
			g := &t.groups[i]
			if g.kind < 0 || t.kinds[g.kind] != kind {
				continue
			}
			if n := int(pods[i]); n > domains[k].Pods || domains[k].Name == "" {
				domains[k] = Domain{Kind: kind, Name: g.name, Pods: n}
			}
		}
	}
	return domains
}

// sum adds up by group how many pods the nodes take.
func (t *Tree) sum(pods []int64, fit []int32) {
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := &t.groups[i]
		if g.lowest {
			for _, n := range fit[g.first:g.last] {
				pods[i] += int64(max(n, 0))
			}
		}
		if g.parent >= 0 {
			pods[g.parent] += pods[i]
		}
	}
}
