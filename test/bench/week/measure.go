package week

import (
	"slices"
	"time"
)

// Result is how a week went. Gangs are those of more than one node; means over
// time leave the first half day out, in which the cluster fills.
type Result struct {
	Policy string
	// Gangs is how often one was placed, Wait the mean time that one waited
	// before its first start, Restarts how often one lost a node and found no other.
	Gangs    int
	Wait     time.Duration
	Restarts int
	// Groups is the mean of lowest groups used over the fewest that hold the
	// gang on an empty cluster; Optimal the share of gangs with that few.
	Groups  float64
	Optimal float64
	// Tier is the mean of tiers reached over the lowest possible.
	Tier float64
	// Leaf and Spine are the largest gangs, in nodes, that one leaf and one
	// spine could take, on average over time.
	Leaf, Spine float64
	// Used is the share of all GPUs in use, on average over time.
	Used float64
}

type measure struct {
	gangs, optimal, restarts, first int
	groups, tiers                   float64
	waited                          time.Duration
	time                            time.Duration
	leaf, spine, used               float64
	passed                          time.Duration
}

// warm is when measuring over time begins.
const warm = 12 * time.Hour

// pass notes what the cluster was like for a time.
func (m *measure) pass(c *cluster, d time.Duration) {
	m.passed += d
	if m.passed < warm || d <= 0 {
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
	m.time += d
	m.leaf += float64(slices.Max(perLeaf)) * d.Hours()
	m.spine += float64(slices.Max(perSpine)) * d.Hours()
	m.used += float64(used) / float64(len(c.free)*perNode) * d.Hours()
}

// placed notes where a gang went.
func (m *measure) placed(c *cluster, g *gang) {
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
	if len(leaves) == least {
		m.optimal++
	}
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

// fewest is how many groups hold so many nodes.
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
	all, waited := m.first, m.waited
	for _, g := range w.waiting {
		if !g.placed {
			all++
			waited += Horizon - g.at
		}
	}
	gangs, hours := float64(max(1, m.gangs)), m.time.Hours()
	return Result{
		Policy: name, Gangs: m.gangs, Restarts: m.restarts,
		Wait:   waited / time.Duration(max(1, all)),
		Groups: m.groups / gangs, Optimal: float64(m.optimal) / gangs, Tier: m.tiers / gangs,
		Leaf: m.leaf / hours, Spine: m.spine / hours, Used: m.used / hours,
	}
}

// mean is the mean week of one policy; counts are rounded down.
func mean(weeks []Result) Result {
	var sum Result
	for i := range weeks {
		w := &weeks[i]
		sum.Policy = w.Policy
		sum.Gangs += w.Gangs
		sum.Wait += w.Wait
		sum.Restarts += w.Restarts
		sum.Groups += w.Groups
		sum.Optimal += w.Optimal
		sum.Tier += w.Tier
		sum.Leaf += w.Leaf
		sum.Spine += w.Spine
		sum.Used += w.Used
	}
	n := float64(len(weeks))
	return Result{
		Policy: sum.Policy, Gangs: sum.Gangs / len(weeks), Wait: sum.Wait / time.Duration(len(weeks)),
		Restarts: sum.Restarts / len(weeks), Groups: sum.Groups / n, Optimal: sum.Optimal / n, Tier: sum.Tier / n,
		Leaf: sum.Leaf / n, Spine: sum.Spine / n, Used: sum.Used / n,
	}
}
