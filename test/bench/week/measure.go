package week

import (
	"math"
	"slices"
	"time"
)

// Result is how a week went. Gangs are those of more than one node; means over
// time leave the first half day out, in which the cluster fills.
type Result struct {
	Policy string
	// Gangs is how often one was placed, Waits are the times that they waited before
	// their first start, or in vain, by [Sizes].
	Gangs int
	Waits [4][]time.Duration
	// Slowdown is the mean of the times from arrival to end over the durations, of at least ten minutes, without
	// failures.
	Slowdown float64
	// Groups is the mean of lowest groups used over the fewest that hold the
	// gang on an empty cluster.
	Groups float64
	// Possible is the mean of lowest groups used over the fewest that had room
	// for the gang when it was placed, gangs that lost a node left out.
	Possible float64
	// Tier is the mean of tiers reached over the lowest possible.
	Tier float64
	// Holes are on average over time.
	Holes
	// Used is the share of all GPUs in use, on average over time.
	Used float64
}

// Holes are the largest gangs, in nodes, that one leaf and one spine could take.
type Holes struct{ Leaf, Spine float64 }

func (h *Holes) add(other Holes, times float64) {
	h.Leaf += times * other.Leaf
	h.Spine += times * other.Spine
}

type measure struct {
	gangs         int
	groups, tiers float64
	waits         [4][]time.Duration
	slowdown      float64
	time          time.Duration
	holes         Holes
	used          float64
	passed        time.Duration
	// fresh is how many gangs were placed whole, possible the sum of their
	// groups over the fewest then.
	fresh    int
	possible float64
}

// warm is when measuring over time begins.
const warm = 12 * time.Hour

// pass notes what the cluster was like for a time.
func (m *measure) pass(c *cluster, d time.Duration) {
	m.passed += d
	if d <= 0 {
		return
	}
	perLeaf, perSpine := make([]int, len(c.leafSizes)), make([]int, len(c.spineSizes))
	used := 0
	for n, free := range c.free {
		used += perNode - int(free)
		if free == perNode && !c.down[n] {
			perLeaf[c.leaf[n]]++
			perSpine[c.spine[n]]++
		}
	}
	holes := Holes{float64(slices.Max(perLeaf)), float64(slices.Max(perSpine))}
	if m.passed < warm {
		return
	}
	m.time += d
	m.holes.add(holes, d.Hours())
	m.used += float64(used) / float64(len(c.free)*perNode) * d.Hours()
}

// possible is the fewest lowest groups that have room for a gang now.
func possible(c *cluster, g *gang) int {
	room := make([]int, len(c.leafSizes))
	for n := range c.free {
		room[c.leaf[n]] += int(c.room(int32(n), g.gpus))
	}
	return fewest(room, g.pods)
}

// placed notes where a gang went; then is the fewest groups that had room for
// it, 0 if it had been there in part.
func (m *measure) placed(c *cluster, g *gang, then int) {
	if g.pods < 2 {
		return
	}
	leaves, spines := map[int32]bool{}, map[int32]bool{}
	for _, n := range g.nodes {
		leaves[c.leaf[n]] = true
		spines[c.spine[n]] = true
	}
	least := fewest(c.leafSizes, g.pods)
	tier, lowest := tierOf(len(leaves), len(spines)), tierOf(least, fewest(c.spineSizes, g.pods))
	m.gangs++
	m.groups += float64(len(leaves)) / float64(least)
	m.tiers += float64(tier - lowest)
	if then > 0 {
		m.fresh++
		m.possible += float64(len(leaves)) / float64(then)
	}
}

// Sizes are the classes of gangs by pods: how many the largest has.
func Sizes() [4]int { return [4]int{1, 31, 99, math.MaxInt} }

func (m *measure) wait(g *gang, until time.Duration) {
	sizes := Sizes()
	size := slices.IndexFunc(sizes[:], func(most int) bool { return g.pods <= most })
	m.waits[size] = append(m.waits[size], until-g.at)
	m.slowdown += max(1, (until-g.at+g.duration).Hours()/max(g.duration, 10*time.Minute).Hours())
}

// Wait is the mean time that gangs of some sizes waited, and the one that a hundredth of
// them waited for at least.
func (r *Result) Wait(sizes ...int) (mean, p99 time.Duration) {
	var all []time.Duration
	for _, size := range sizes {
		all = append(all, r.Waits[size]...)
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	for _, d := range all {
		mean += d / time.Duration(len(all))
	}
	return mean, all[len(all)*99/100]
}

func tierOf(leaves, spines int) int {
	switch {
	case leaves == 1:
		return 1
	case spines == 1:
		return 2
	}
	return 3
}

// fewest is the least number of groups that hold the nodes.
func fewest(sizes []int, nodes int) (n int) {
	sorted := slices.Sorted(slices.Values(sizes))
	for _, size := range slices.Backward(sorted) {
		if nodes <= 0 {
			break
		}
		nodes -= size
		n++
	}
	return n
}

func (m *measure) result(name string, w *week) Result {
	for _, g := range w.waiting {
		if !g.placed {
			m.wait(g, Horizon)
		}
	}
	gangs, hours := float64(max(1, m.gangs)), m.time.Hours()
	r := Result{
		Policy: name, Gangs: m.gangs, Waits: m.waits,
		Groups: m.groups / gangs, Tier: m.tiers / gangs,
		Possible: m.possible / float64(max(1, m.fresh)),
		Used:     m.used / hours,
	}
	for _, waits := range m.waits {
		r.Slowdown += float64(len(waits))
	}
	r.Slowdown = m.slowdown / r.Slowdown
	r.add(m.holes, 1/hours)
	return r
}

// mean is the mean week of one policy; counts are rounded down.
func mean(weeks []Result) Result {
	var sum Result
	n := float64(len(weeks))
	for i := range weeks {
		w := &weeks[i]
		sum.Policy = w.Policy
		sum.Gangs += w.Gangs
		for size := range sum.Waits {
			sum.Waits[size] = append(sum.Waits[size], w.Waits[size]...)
		}
		sum.Slowdown += w.Slowdown / n
		sum.Groups += w.Groups / n
		sum.Tier += w.Tier / n
		sum.Possible += w.Possible / n
		sum.Used += w.Used / n
		sum.add(w.Holes, 1/n)
	}
	sum.Gangs /= len(weeks)
	return sum
}
