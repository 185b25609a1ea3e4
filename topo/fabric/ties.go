package fabric

import (
	"cmp"
	"slices"
)

// claim counts what a group has of a member: its links there that vote, the links from usual rails, and the number of
// all links at these switches.
type claim struct{ group, votes, usual, fill int32 }

// settle returns the groups between which vote 4 cannot decide: first by links from usual rails, then by the number of
// links at the member's switches, since a wrong cable is one too many.
func (v *voting) settle(e *ends, home []int32) (groups []int32) {
	var all []claim
	isBetween := !slices.ContainsFunc(e.bundles.list, func(b count[int32]) bool { return home[b.value] > 0 })
	for _, l := range e.links {
		group := max(home[l.to], -home[l.to])
		i := slices.IndexFunc(all, func(c claim) bool { return c.group == group })
		if i < 0 {
			i, all = len(all), append(all, claim{group: group})
		}
		c := &all[i]
		c.fill += v.counted(l.to)
		if isBetween || home[l.to] > 0 {
			c.votes++
		}
		if slices.Contains(v.usual(l.to), l.rail) {
			c.usual++
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.votes, a.votes), cmp.Compare(b.usual, a.usual), cmp.Compare(a.fill, b.fill),
			v.compare(a.group, b.group))
	})
	for _, c := range all {
		if c.votes == all[0].votes && c.usual == all[0].usual {
			groups = append(groups, c.group)
		}
	}
	return groups
}

// usual returns the rails that links at a switch usually start from: at least half as many as from any other.
func (v *voting) usual(h int32) (out []int32) {
	var rails tally[int32]
	for _, a := range v.switches[h].list {
		for _, l := range v.ends[a.value].links {
			if l.to == h {
				rails.add(l.rail, v.ends[a.value].members)
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
			n := a.n * v.ends[a.value].members
			if v.ends[a.value].follows { // It may be anywhere.
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
