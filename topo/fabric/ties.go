package fabric

import (
	"cmp"
	"slices"
)

// claim is what a group has of a member: its links there, the ones that vote and the ones from usual rails, and
// the number of all links at these switches.
type claim struct{ group, links, votes, usual, fill int32 }

// settle orders the groups between which vote 4 cannot decide: first by links from usual rails, then by the
// number of links at the member's switches. A wrong cable is one too many: the first is sure if the second has as
// many more as the member has links there.
func (v *voting) settle(e *ends, home []int32) tie {
	var all []claim
	isBetween := !slices.ContainsFunc(e.bundles.list, func(b count[int32]) bool { return home[b.value] > 0 })
	for _, l := range e.links {
		group := max(home[l.to], -home[l.to])
		i := slices.IndexFunc(all, func(c claim) bool { return c.group == group })
		if i < 0 {
			i, all = len(all), append(all, claim{group: group})
		}
		c := &all[i]
		c.links, c.fill = c.links+1, c.fill+v.counted(l.to)
		if isBetween || home[l.to] > 0 {
			c.votes++
		}
		if v.isUsual(l) {
			c.usual++
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.votes, a.votes), cmp.Compare(b.usual, a.usual), cmp.Compare(a.fill, b.fill),
			v.compare(a.group, b.group))
	})
	out := tie{sure: len(all) > 1 && all[1].fill == all[0].fill+all[1].links}
	for _, c := range all {
		if c.votes == all[0].votes && c.usual == all[0].usual {
			out.groups = append(out.groups, c.group)
		}
	}
	return out
}

// isUsual reports whether at least half as many links at a switch start from the rail of a
// link as from any other.
func (v *voting) isUsual(link link) bool {
	rails := v.rails(link.to)
	n := 2 * rails.count(link.rail)
	return !slices.ContainsFunc(rails.list, func(c count[int32]) bool { return c.n > n })
}

// rails counts from which rails the links at a switch start.
func (v *voting) rails(h int32) (rails tally[int32]) {
	for _, a := range v.at(h) {
		for _, l := range v.ends[a.value].links {
			if l.to == h {
				rails.add(l.rail, v.ends[a.value].members)
			}
		}
	}
	return rails
}

// foreign finds the switches that are foreign to the groups of members at them.
func (v *voting) foreign(out *grouping) {
	out.foreign = map[int32][]stray{}
	var t tally[int32]
	for h := int32(1); int(h) < len(v.ids); h++ {
		t.reset()
		for _, a := range v.at(h) {
			n := a.n * v.ends[a.value].members
			if v.ends[a.value].follows { // It may be anywhere.
				n = 0
			}
			t.add(out.group[a.value], n)
		}
		if len(t.list) < 2 {
			continue
		}
		s := stray{to: h, group: t.most(v.compare)}
		if out.straddles {
			rails := v.rails(h)
			s.rail = rails.most(cmp.Compare[int32])
		}
		n := t.count(s.group)
		for _, c := range t.list {
			if c.value != s.group && n > 0 && n >= 2*c.n {
				out.foreign[c.value] = append(out.foreign[c.value], s)
			}
		}
	}
}
