package fabric

import (
	"cmp"
	"slices"
)

// equals returns the groups with the most links of a member, and of those the ones where most links
// start from a usual rail of the switch, the least first.
func (v *voting) equals(e *ends, home []int32) []int32 {
	var t, usual tally[int32]
	if v.choice(e.number, home, &t); len(t.list) == 0 { // All its switches are between groups.
		for _, b := range e.bundles {
			t.add(-home[b.other], b.n)
		}
	}
	most := t.count(t.most(v.compare))
	for _, c := range t.list {
		if c.n < most {
			continue
		}
		usual.add(c.value, 1)
		for _, l := range e.links {
			if max(home[l.to], -home[l.to]) == c.value && v.isUsual(l) {
				usual.add(c.value, 1)
			}
		}
	}
	most = usual.count(usual.most(v.compare))
	var out []int32
	for _, c := range usual.list {
		if c.n == most {
			out = append(out, c.value)
		}
	}
	slices.SortFunc(out, v.compare)
	return out
}

// sortByFill sorts tied groups by the number of links at a member's switches. A wrong cable is one too many:
// the first is sure if the second has as many more as the member has links there.
func (v *voting) sortByFill(e *ends, home, groups []int32) (sure bool) {
	var fill, links tally[int32]
	for _, l := range e.links {
		group := max(home[l.to], -home[l.to])
		links.add(group, 1)
		fill.add(group, v.counted(l.to).links)
	}
	slices.SortStableFunc(groups, func(a, b int32) int { return cmp.Compare(fill.count(a), fill.count(b)) })
	return fill.count(groups[1]) == fill.count(groups[0])+links.count(groups[1])
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
		for _, l := range v.ends[a.other].links {
			if l.to == h {
				rails.add(l.rail, v.ends[a.other].members)
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
			n := a.n * v.ends[a.other].members
			if v.ends[a.other].follows { // It may be anywhere.
				n = 0
			}
			t.add(out.group[a.other], n)
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
