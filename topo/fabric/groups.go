package fabric

import (
	"runtime"
	"slices"
	"strings"
	"sync"
)

// ends are the links of one or more members.
type ends struct {
	number  int32
	members int32
	links   []link
	// bundles has the same links by switch.
	bundles []bundle
	// follows is set for members that count only at switches with few links of others.
	follows bool
	// print differs between any two ends.
	print uint64
}

// link leads from a rail to a switch.
type link struct{ to, rail int32 }

// bundle is n links to a switch, or of one of the ends.
type bundle struct{ other, n int32 }

// newEnds returns the links of one member.
func newEnds(links []link) *ends {
	e := &ends{members: 1, links: links, bundles: make([]bundle, 0, len(links))}
	for _, l := range links {
		i := slices.IndexFunc(e.bundles, func(b bundle) bool { return b.other == l.to })
		if i < 0 {
			e.bundles = append(e.bundles, bundle{l.to, 1})
			continue
		}
		e.bundles[i].n++
	}
	return e
}

// to counts the links to a switch.
func (e *ends) to(h int32) int32 {
	for _, b := range e.bundles {
		if b.other == h {
			return b.n
		}
	}
	return 0
}

// degree counts the links.
func (e *ends) degree() int32 { return int32(len(e.links)) } //nolint:gosec // maxPorts, or spines.

// grouping is the outcome of the votes of the package comment.
type grouping struct {
	// group is, by ends, the switch that stands for the members' group, 0 without links.
	group []int32
	// foreign are the switches, in ascending order, that members of a group are linked
	// to and that are foreign to the group.
	foreign map[int32][]int32
	// anchors and prints are the outcome of vote 1 and what each follows from.
	anchors []int32
	prints  []uint64
}

// vote groups members (nodes, or leaf groups) by their links to switches (leaves, or spines) with
// these IDs. Members with equal links are one: they vote alike. Anchors are not computed again where the last
// vote had the same members with the same links.
func vote(ids []string, all []*ends, last *grouping) *grouping {
	v := newVoting(ids, all)
	out := &grouping{prints: v.prints()}
	out.anchors = v.anchors(out.prints, last)
	out.group = v.groups(v.homes(v.votes(out.anchors)))
	out.foreign = v.foreign(out.group)
	return out
}

// voting has the links prepared for the votes.
type voting struct {
	// ids are the IDs of the switches; number 0 stands for no switch.
	ids  []string
	ends []*ends
	// list holds the ends with links, sorted by switch; start holds the first index of each switch.
	list  []bundle
	start []int32
	// leading and following count the links at each switch of members that lead and
	// that follow.
	leading, following []reach
}

// reach counts links, and links of members that have other links.
type reach struct{ links, wide int32 }

func newVoting(ids []string, all []*ends) *voting {
	v := &voting{
		ids: ids, ends: all, start: make([]int32, len(ids)+2),
		leading: make([]reach, len(ids)), following: make([]reach, len(ids)),
	}
	for _, e := range all {
		if e.members == 0 {
			continue
		}
		for _, b := range e.bundles {
			r := &v.leading[b.other]
			if e.follows {
				r = &v.following[b.other]
			}
			n := b.n * e.members
			r.links += n
			if e.degree() > 1 {
				r.wide += n
			}
			v.start[b.other+2]++
		}
	}
	next := v.start[1:] // Where the next of each switch goes, in the end where its list ends.
	for i := 1; i < len(next); i++ {
		next[i] += next[i-1]
	}
	v.list = make([]bundle, next[len(next)-1])
	for i := int32(0); int(i) < len(all); i++ {
		if all[i].members == 0 {
			continue
		}
		for _, b := range all[i].bundles {
			v.list[next[b.other]] = bundle{i, b.n}
			next[b.other]++
		}
	}
	return v
}

// at returns the ends with links at a switch.
func (v *voting) at(h int32) []bundle { return v.list[v.start[h]:v.start[h+1]] }

// counts reports whether links count at a switch in votes 1 and 3.
func (v *voting) counts(h int32, e *ends) bool { return !e.follows || v.leading[h].links <= few }

// counted counts the links at a switch that do.
func (v *voting) counted(h int32) reach {
	if v.leading[h].links > few {
		return v.leading[h]
	}
	return reach{v.leading[h].links + v.following[h].links, v.leading[h].wide + v.following[h].wide}
}

func (v *voting) compare(a, b int32) int { return strings.Compare(v.ids[a], v.ids[b]) }

// prints returns a fingerprint for each switch: a sum over its members and over the members of all
// their switches.
func (v *voting) prints() []uint64 {
	at, out := make([]uint64, len(v.ids)), make([]uint64, len(v.ids))
	for _, e := range v.ends {
		for _, b := range e.bundles {
			at[b.other] += e.print * uint64(e.members) //nolint:gosec // Never negative.
		}
	}
	for _, e := range v.ends {
		sum := uint64(0)
		for _, b := range e.bundles {
			sum += at[b.other]
		}
		for _, b := range e.bundles {
			out[b.other] += sum * uint64(e.members) //nolint:gosec // Never negative.
		}
	}
	return out
}

// anchors is vote 1: the least switch among each switch and its siblings.
func (v *voting) anchors(prints []uint64, last *grouping) []int32 {
	out := make([]int32, len(v.ids))
	parallel(len(v.ids), func(from, to int32) {
		shared := make([]int32, len(v.ids))
		var met []int32
		for h := from; h < to; h++ {
			if int(h) < len(last.prints) && prints[h] == last.prints[h] {
				out[h] = last.anchors[h]
				continue
			}
			met = v.share(h, shared, met[:0])
			out[h] = h
			for _, o := range met {
				if v.compare(o, out[h]) < 0 && v.siblings(h, o, shared[o]) {
					out[h] = o
				}
			}
			for _, o := range met {
				shared[o] = 0
			}
		}
	})
	return out
}

// share counts the links that a switch has in common with each other one, and
// appends these to met.
func (v *voting) share(h int32, shared, met []int32) []int32 {
	for _, a := range v.at(h) {
		e := v.ends[a.other]
		if !v.counts(h, e) {
			continue
		}
		for _, b := range e.bundles {
			if b.other == h || !v.counts(b.other, e) {
				continue
			}
			if shared[b.other] == 0 {
				met = append(met, b.other)
			}
			shared[b.other] += min(a.n, b.n) * v.ends[a.other].members
		}
	}
	return met
}

// siblings returns vote 1 for two switches that share this number of links.
func (v *voting) siblings(h, o, shared int32) bool {
	here, there := v.counted(h), v.counted(o)
	if 2*shared > here.links && 2*shared > there.links {
		return true
	}
	wide := max(here.wide, there.wide)
	return shared > few && 8*shared >= wide && v.shareClasses(h, o, wide)
}

// maxDegree is the number of links from which members are of one class.
const maxDegree = 32

// shareClasses is the second half of vote 1: over the classes of members, by their
// numbers of links, that neither switch has four times as many links of as the
// other. A member with one link is never on both.
func (v *voting) shareClasses(h, o, wide int32) bool {
	var classes [maxDegree + 1]struct{ here, there, both int32 }
	for _, a := range v.at(h) {
		e := v.ends[a.other]
		if !v.counts(h, e) {
			continue
		}
		c := &classes[min(e.degree(), maxDegree)]
		c.here += a.n * v.ends[a.other].members
		if v.counts(o, e) {
			c.both += min(a.n, e.to(o)) * v.ends[a.other].members
		}
	}
	for _, a := range v.at(o) {
		if e := v.ends[a.other]; v.counts(o, e) {
			classes[min(e.degree(), maxDegree)].there += a.n * v.ends[a.other].members
		}
	}
	here, there, both := int32(0), int32(0), int32(0)
	for _, c := range classes[2:] {
		if 4*min(c.here, c.there) > max(c.here, c.there) {
			here, there, both = here+c.here, there+c.there, both+c.both
		}
	}
	return both > few && 2*both > here && 2*both > there && 8*both >= wide
}

// votes is vote 2: the anchor that most links of a member lead to.
func (v *voting) votes(anchors []int32) []int32 {
	out := make([]int32, len(v.ends))
	var t tally[int32]
	for i, e := range v.ends {
		t.reset()
		for _, b := range e.bundles {
			t.add(anchors[b.other], b.n)
		}
		out[i] = t.most(v.compare)
	}
	return out
}

// homes is vote 3: what most members at a switch voted for.
func (v *voting) homes(votes []int32) []int32 {
	out := make([]int32, len(v.ids))
	var t tally[int32]
	for h := int32(1); int(h) < len(out); h++ {
		t.reset()
		for _, a := range v.at(h) {
			if v.counts(h, v.ends[a.other]) {
				t.add(votes[a.other], a.n*v.ends[a.other].members)
			}
		}
		out[h] = t.most(v.compare)
	}
	return out
}

// groups is vote 4: the home that most links of a member lead to. Among equals
// the one wins where more links of the member start from a usual rail of the switch.
func (v *voting) groups(home []int32) []int32 {
	out := make([]int32, len(v.ends))
	var t tally[int32]
	usual := map[int32][]int32{} // Of the switches that are asked for.
	for i, e := range v.ends {
		t.reset()
		for _, b := range e.bundles {
			t.add(home[b.other], b.n)
		}
		out[i] = t.most(v.compare)
		most := t.count(out[i])
		if !slices.ContainsFunc(t.list, func(c count[int32]) bool { return c.n == most && c.value != out[i] }) {
			continue
		}
		for _, l := range e.links {
			if usual[l.to] == nil {
				usual[l.to] = v.usual(l.to)
			}
			t.add(home[l.to], 1<<10) // Usual rails decide between equals alone.
			if slices.Contains(usual[l.to], l.rail) {
				t.add(home[l.to], 1)
			}
		}
		out[i] = t.most(v.compare)
	}
	return out
}

// usual returns the rails with at least half as many links at a switch as any other, or
// none without members.
func (v *voting) usual(h int32) []int32 {
	var rails tally[int32]
	most := int32(0)
	for _, a := range v.at(h) {
		for _, l := range v.ends[a.other].links {
			if l.to == h {
				rails.add(l.rail, v.ends[a.other].members)
				most = max(most, rails.count(l.rail))
			}
		}
	}
	out := []int32{}
	for _, c := range rails.list {
		if 2*c.n >= most {
			out = append(out, c.value)
		}
	}
	return out
}

// foreign finds the switches that are foreign to the groups of members at them.
func (v *voting) foreign(group []int32) map[int32][]int32 {
	out := map[int32][]int32{}
	var t tally[int32]
	for h := int32(1); int(h) < len(v.ids); h++ {
		t.reset()
		for _, a := range v.at(h) {
			n := a.n * v.ends[a.other].members
			if !v.counts(h, v.ends[a.other]) {
				n = 0
			}
			t.add(group[a.other], n)
		}
		for _, g := range t.list {
			if slices.ContainsFunc(t.list, func(c count[int32]) bool { return c != g && c.n > 0 && c.n >= 2*g.n }) {
				out[g.value] = append(out[g.value], h)
			}
		}
	}
	return out
}

// worthwhile is the least number of items to divide between two goroutines.
const worthwhile = 64

// parallel has the numbers below n worked on by all processors.
func parallel(n int, work func(from, to int32)) {
	parts := min(runtime.GOMAXPROCS(0), 1+n/worthwhile)
	var others sync.WaitGroup
	part := func(i int) int32 { return int32(n * i / parts) } //nolint:gosec // Fewer than 2^31 nodes and ports.
	for i := 1; i < parts; i++ {
		others.Go(func() { work(part(i), part(i+1)) })
	}
	work(0, part(1))
	others.Wait()
}
