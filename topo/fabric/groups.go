package fabric

import (
	"cmp"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// ends are the links of one or more members.
type ends struct {
	number int32
	links  []link
	// bundles counts the same links by switch.
	bundles tally[int32]
}

// link leads from a rail to a switch.
type link struct{ to, rail int32 }

// grouping is the outcome of the votes of the package comment.
type grouping struct {
	// group is, by ends, the switch that stands for the members' group, 0 without links.
	group []int32
	// foreign are the switches, in ascending order, that members of a group are linked to and that are foreign to the
	// group.
	foreign map[int32][]stray
	// tied holds, by ends, the groups between which vote 4 cannot decide, the likeliest first. straddles is set if one
	// member in twenty is tied or has several links in another group: that is a plan, not wrong cables.
	tied      map[int32][]int32
	straddles bool
	// anchors are the outcome of vote 1.
	anchors []int32
}

// stray is a switch foreign to a group: the group with the most links there and, in a fleet that straddles, a rail that
// its links usually start from, else -1.
type stray struct{ to, group, rail int32 }

// voting groups members (nodes, or leaf groups) by their links to switches (leaves, or spines). Members with equal
// links are one: they vote alike.
type voting struct {
	// ids are the IDs of the switches; number 0 stands for no switch.
	ids      []string
	switches []junction
	ends     []*ends
	known    map[string]*ends
	// members counts the members by ends. follows is set for those that count only at switches with few links of others.
	members []int32
	follows []bool
}

// junction is a switch with the ends that have links to it.
type junction struct {
	list []count[int32]
	// leading and following count the links of members that lead and that follow.
	leading, following int32
	// touched is set if the links are others than in the last vote.
	touched bool
}

// connect returns the ends with these links.
func (v *voting) connect(links []link, follows bool) *ends {
	key := make([]byte, 1, 1+8*maxPorts)
	if follows {
		key[0] = 1
	}
	for _, l := range links {
		key = binary.NativeEndian.AppendUint32(key, uint32(l.to))   //nolint:gosec // Never negative.
		key = binary.NativeEndian.AppendUint32(key, uint32(l.rail)) //nolint:gosec // Never negative.
	}
	if e := v.known[string(key)]; e != nil {
		return e
	}
	e := &ends{links: links, number: int32(len(v.ends))} //nolint:gosec // See compact.
	e.bundles.list = make([]count[int32], 0, len(links))
	for _, l := range links {
		e.bundles.add(l.to, 1)
	}
	v.ends, v.known[string(key)] = append(v.ends, e), e
	v.members, v.follows = append(v.members, 0), append(v.follows, follows)
	return e
}

// count gives ends n members more.
func (v *voting) count(e *ends, n int32) {
	v.members[e.number] += n
	members := v.members[e.number]
	for _, b := range e.bundles.list {
		s := &v.switches[b.value]
		links := &s.leading
		if v.follows[e.number] {
			links = &s.following
		}
		*links += n * b.n
		if s.touched = true; members == n {
			s.list = append(s.list, count[int32]{e.number, b.n})
		} else if members == 0 {
			s.list = slices.DeleteFunc(s.list, func(o count[int32]) bool { return o.value == e.number })
		}
	}
}

// vote returns the outcome of all votes. Anchors are not computed again where the last vote had the same members with
// the same links.
func (v *voting) vote(last *grouping) *grouping {
	out := &grouping{anchors: v.anchors(last.anchors)}
	anchors := slices.Clone(out.anchors)
	for h, anchor := range out.anchors {
		if v.counted(int32(h)) <= few {
			anchors[h] = out.anchors[anchor]
		}
	}
	v.groups(out, v.homes(v.votes(anchors)))
	v.foreign(out)
	return out
}

// counts reports whether links count at a switch in votes 1 and 3.
func (v *voting) counts(h, ends int32) bool { return !v.follows[ends] || v.switches[h].leading <= few }

// counted counts the links at a switch that do.
func (v *voting) counted(h int32) int32 {
	s := &v.switches[h]
	if s.leading > few {
		return s.leading
	}
	return s.leading + s.following
}

func (v *voting) compare(a, b int32) int { return strings.Compare(v.ids[a], v.ids[b]) }

// precedes reports whether h rather than o is the anchor: the one with more links if that has few, else the lesser.
func (v *voting) precedes(h, o, of int32) bool {
	if a, b := v.counted(h), v.counted(o); a != b && v.counted(of) <= few {
		return a > b
	}
	return v.compare(h, o) < 0
}

// anchors is vote 1: the least switch among each switch and its siblings.
func (v *voting) anchors(last []int32) []int32 {
	out, known := make([]int32, len(v.ids)), v.forget(len(last))
	copy(out, last)
	parallel(len(v.ids), func(from, to int32) {
		shared := make([]int32, len(v.ids))
		var met []int32
		for h := from; h < to; h++ {
			if known[h] {
				continue
			}
			met = v.share(h, shared, met[:0])
			out[h] = h
			for _, o := range met {
				if v.precedes(o, out[h], h) && v.siblings(h, o, shared[o]) {
					out[h] = o
				}
				shared[o] = 0
			}
		}
	})
	return out
}

// forget returns for which of the first n switches the anchor is as in the last vote: all but the touched ones and
// those with ends in common with one.
func (v *voting) forget(n int) []bool {
	known := slices.Concat(slices.Repeat([]bool{true}, n), make([]bool, len(v.ids)-n))
	for h := range v.switches {
		if s := &v.switches[h]; s.touched {
			known[h], s.touched = false, false
			for _, a := range s.list {
				for _, b := range v.ends[a.value].bundles.list {
					known[b.value] = false
				}
			}
		}
	}
	return known
}

// share counts the links that a switch has in common with each other one, and appends these to met.
func (v *voting) share(h int32, shared, met []int32) []int32 {
	for _, a := range v.switches[h].list {
		if !v.counts(h, a.value) {
			continue
		}
		for _, b := range v.ends[a.value].bundles.list {
			if b.value == h || !v.counts(b.value, a.value) {
				continue
			}
			if shared[b.value] == 0 {
				met = append(met, b.value)
			}
			shared[b.value] += min(a.n, b.n) * v.members[a.value]
		}
	}
	return met
}

// siblings returns vote 1 for two switches that share this number of links.
func (v *voting) siblings(h, o, shared int32) bool {
	most := max(v.counted(h), v.counted(o))
	return 2*shared > most || shared >= few && 8*shared >= most && v.shareClasses(h, o, most)
}

// maxDegree is the number of links from which members are of one class.
const maxDegree = 32

// shareClasses is the second half of vote 1: over the classes of members, by their numbers of links, that neither
// switch has four times as many links of as the other. A member with one link is never on both.
func (v *voting) shareClasses(h, o, most int32) bool {
	var classes [maxDegree + 1]struct{ here, there, both int32 }
	for _, a := range v.switches[h].list {
		if e := v.ends[a.value]; v.counts(h, a.value) {
			c := &classes[min(len(e.links), maxDegree)]
			if c.here += a.n * v.members[a.value]; v.counts(o, a.value) {
				c.both += min(a.n, e.bundles.count(o)) * v.members[a.value]
			}
		}
	}
	for _, a := range v.switches[o].list {
		if v.counts(o, a.value) {
			classes[min(len(v.ends[a.value].links), maxDegree)].there += a.n * v.members[a.value]
		}
	}
	here, there, both := int32(0), int32(0), int32(0)
	for _, c := range classes[2:] {
		if 4*min(c.here, c.there) > max(c.here, c.there) {
			here, there, both = here+c.here, there+c.there, both+c.both
		}
	}
	return both >= few && 2*both > max(here, there) && 8*both >= most
}

// votes is vote 2: the least anchor among those that most links of a member lead to, or at least three quarters as
// many: where rails are on leaves of two sizes, a lost link changes nothing.
func (v *voting) votes(anchors []int32) []int32 {
	out := make([]int32, len(v.ends))
	parallel(len(out), func(from, to int32) {
		var t tally[int32]
		for i := from; i < to; i++ {
			out[i] = v.choice(i, anchors, &t)
			n := t.count(out[i])
			for _, c := range t.list {
				if 4*c.n >= 3*n && v.compare(c.value, out[i]) < 0 {
					out[i] = c.value
				}
			}
		}
	})
	return out
}

// choice counts the links of a member by what their switches stand for, and returns the most.
func (v *voting) choice(member int32, of []int32, t *tally[int32]) int32 {
	t.reset()
	for _, b := range v.ends[member].bundles.list {
		if of[b.value] > 0 {
			t.add(of[b.value], b.n)
		}
	}
	return t.most(v.compare)
}

// homes is vote 3: what most members at a switch voted for, negative if more than half as many voted for another: the
// switch is between groups.
func (v *voting) homes(votes []int32) []int32 {
	out := make([]int32, len(v.ids))
	parallel(len(out), func(from, to int32) {
		var t tally[int32]
		for h := from; h < to; h++ {
			t.reset()
			for _, a := range v.switches[h].list {
				if v.counts(h, a.value) {
					t.add(votes[a.value], a.n*v.members[a.value])
				}
			}
			out[h] = t.most(v.compare)
			n := t.count(out[h])
			if slices.ContainsFunc(t.list, func(c count[int32]) bool { return c.value != out[h] && 2*c.n > n }) {
				out[h] = -out[h]
			}
		}
	})
	return out
}

// groups is vote 4: the home that most links of a member lead to.
func (v *voting) groups(out *grouping, home []int32) {
	out.group, out.tied = make([]int32, len(v.ends)), map[int32][]int32{}
	open, split := make([]bool, len(v.ends)), make([]bool, len(v.ends))
	parallel(len(open), func(from, to int32) {
		var t tally[int32]
		for i := from; i < to; i++ {
			if group := v.choice(i, home, &t); v.members[i] > 0 && len(v.ends[i].links) > 0 {
				out.group[i], open[i] = group, len(t.list) == 0 || t.isTied(group)
				split[i] = slices.ContainsFunc(t.list, func(c count[int32]) bool { return c.n > 1 && c.value != group })
			}
		}
	})
	v.decide(out.group, home, open)
	between, members := int32(0), int32(0)
	for i, e := range v.ends {
		if open[i] {
			tied := v.settle(e, home)
			if out.group[i] = tied[0]; len(tied) > 1 {
				out.tied[e.number], split[i] = tied, true
			}
		}
		if !v.follows[i] {
			if members += v.members[i]; split[i] {
				between += v.members[i]
			}
		}
	}
	out.straddles = between > few && 20*between >= members
}

// decide lets each switch between groups stand for the one of most of its links of members that are decided.
func (v *voting) decide(groups, home []int32, open []bool) {
	var t tally[int32]
	for h := range home {
		if t.reset(); home[h] < 0 {
			for _, a := range v.switches[h].list {
				if !open[a.value] {
					t.add(groups[a.value], a.n*v.members[a.value])
				}
			}
			home[h] = cmp.Or(-t.most(v.compare), home[h])
		}
	}
}

// parallel has the numbers below n worked on by all processors, 64 at least by each.
func parallel(n int, work func(from, to int32)) {
	parts := min(runtime.GOMAXPROCS(0), 1+n/64)
	var others sync.WaitGroup
	part := func(i int) int32 { return int32(n * i / parts) } //nolint:gosec // Fewer than 2^31 nodes and ports.
	for i := 1; i < parts; i++ {
		others.Go(func() { work(part(i), part(i+1)) })
	}
	work(0, part(1))
	others.Wait()
}
