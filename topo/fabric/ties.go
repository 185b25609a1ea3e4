package fabric

import (
	"cmp"
	"slices"
)

// settle returns the groups between which vote 4 cannot decide: first by links from usual rails, then by the number of
// all links at the member's switches, since a wrong cable is one too many.
func (v *voting) settle(e *ends, home []int32) (groups []int32) {
	var votes, usual, fill tally[int32]
	isBetween := !slices.ContainsFunc(e.bundles.list, func(b count[int32]) bool { return home[b.value] > 0 })
	for _, l := range e.links {
		group := max(home[l.to], -home[l.to])
		if fill.add(group, v.counted(l.to)); isBetween || home[l.to] > 0 {
			votes.add(group, 1)
		}
		if slices.Contains(v.usual(l.to), l.rail) {
			usual.add(group, 1)
		}
	}
	evident := func(a, b int32) int { return cmp.Or(votes.compare(b, a), usual.compare(b, a)) }
	for _, c := range fill.list {
		groups = append(groups, c.value)
	}
	slices.SortFunc(groups, func(a, b int32) int { return cmp.Or(evident(a, b), fill.compare(a, b), v.compare(a, b)) })
	return slices.DeleteFunc(groups, func(g int32) bool { return evident(groups[0], g) != 0 })
}

// usual returns the rails that links at a switch usually start from: at least half as many as from any other.
func (v *voting) usual(h int32) (out []int32) {
	var rails tally[int32]
	for _, a := range v.switches[h].list {
		for _, l := range v.ends[a.value].links {
			if l.to == h {
				rails.add(l.rail, v.members[a.value])
			}
		}
	}
	n := rails.count(rails.most(cmp.Compare[int32]))
	for _, c := range rails.list {
		if 2*c.n >= n {
			out = append(out, c.value)
		}
	}
	return out
}

// foreign finds the switches that are foreign to the groups of members at them.
func (v *voting) foreign(out *grouping) {
	out.foreign = map[int32][]stray{}
	var t tally[int32]
	for h := int32(1); int(h) < len(v.ids); h++ {
		t.reset()
		for _, a := range v.switches[h].list {
			n := a.n * v.members[a.value]
			if v.follows[a.value] { // It may be anywhere.
				n = 0
			}
			t.add(out.group[a.value], n)
		}
		if len(t.list) < 2 {
			continue
		}
		group, rails := t.most(v.compare), []int32{-1}
		if out.straddles {
			rails = v.usual(h)
		}
		n := t.count(group)
		for _, c := range t.list {
			for _, rail := range rails {
				if c.value != group && n > 0 && n >= 2*c.n {
					out.foreign[c.value] = append(out.foreign[c.value], stray{h, group, rail})
				}
			}
		}
	}
}
