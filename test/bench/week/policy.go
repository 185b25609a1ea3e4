package week

import (
	"math/rand/v2"
	"slices"

	"github.com/heddle-dev/heddle/topo/placement"
)

// Ask is a gang that wants nodes.
type Ask struct {
	Pods int
	// GPUs is how many each pod asks for.
	GPUs int32
	// Placed are the nodes of the ranks that have one; nil if none has.
	Placed []int32
	// Avoid are nodes that get no rank; only [Map] knows them.
	Avoid []int32
}

// Policy is a way to place gangs. Place returns every rank's node, or nil if
// the gang has to wait.
type Policy interface {
	Name() string
	Start(c *cluster, seed uint64)
	Place(c *cluster, a *Ask) []int32
}

// level is the lowest at which one group could hold a gang on an empty
// cluster: what a user who knows the cluster writes into the gang.
func level(c *cluster, a *Ask) string {
	needs := (a.Pods*int(a.GPUs) + perNode - 1) / perNode
	switch {
	case needs <= slices.Max(c.leafSizes):
		return "leaf"
	case needs <= slices.Max(c.spineSizes):
		return "spine"
	}
	return ""
}

// Map is topo/placement. With Required it waits for a group of the level that
// could hold the gang.
type Map struct {
	Required bool
	fit      []int32
}

// Name describes the policy.
func (m *Map) Name() string {
	if m.Required {
		return "heddle, level required"
	}
	return "heddle"
}

// Start makes room for the capacity of each node.
func (m *Map) Start(c *cluster, _ uint64) {
	m.fit = make([]int32, len(c.free))
}

// Place plans the gang.
func (m *Map) Place(c *cluster, a *Ask) []int32 { return m.plan(c, a).Nodes }

// plan returns a plan without nodes if the gang has to wait.
func (m *Map) plan(c *cluster, a *Ask) placement.Plan {
	for n := range m.fit {
		m.fit[n] = c.room(int32(n), a.GPUs)
	}
	g := placement.Gang{Tasks: []placement.Task{{Name: "worker", Pods: a.Pods, GPUs: int(a.GPUs)}}, Avoid: a.Avoid}
	if m.Required {
		g.Require = level(c, a)
	}
	for rank, node := range a.Placed {
		if node != nowhere {
			g.Placed = append(g.Placed, placement.Member{Rank: rank, Node: node})
		}
	}
	plan, err := placement.Place(c.tree, &g, &placement.Capacity{Fit: [][]int32{m.fit}, Free: c.free})
	if err != nil {
		return placement.Plan{}
	}
	return plan
}

// BestFit is a scheduler without a map: every pod goes to the node with the
// fewest free GPUs that takes it, at random among equal ones, as kube-scheduler
// with MostAllocated does.
type BestFit struct{ rng *rand.Rand }

// Name describes the policy.
func (b *BestFit) Name() string { return "best fit, no map" }

// Start seeds its choices.
func (b *BestFit) Start(_ *cluster, seed uint64) {
	b.rng = rand.New(rand.NewPCG(seed, 300))
}

// Place chooses node by node.
func (b *BestFit) Place(c *cluster, a *Ask) []int32 {
	return fill(b.rng, c, a, func(int32) bool { return true })
}

// fill puts every pod that has no node on the allowed node with the fewest
// free GPUs.
func fill(rng *rand.Rand, c *cluster, a *Ask, allowed func(node int32) bool) []int32 {
	type choice struct {
		node, free int32
		order      int
	}
	var nodes []choice
	for n := range c.free {
		node := int32(n)
		if c.room(node, a.GPUs) > 0 && allowed(node) {
			nodes = append(nodes, choice{node, c.free[node], rng.Int()})
		}
	}
	slices.SortFunc(nodes, func(x, y choice) int {
		if x.free != y.free {
			return int(x.free - y.free)
		}
		if x.order < y.order {
			return -1
		}
		return 1
	})
	out := make([]int32, a.Pods)
	for rank := range out {
		if a.Placed != nil && a.Placed[rank] != nowhere {
			out[rank] = a.Placed[rank]
			continue
		}
		for len(nodes) > 0 && nodes[0].free < a.GPUs {
			nodes = nodes[1:]
		}
		if len(nodes) == 0 {
			return nil
		}
		out[rank] = nodes[0].node
		nodes[0].free -= a.GPUs
	}
	return out
}

// Native is the rule of Kubernetes' own TopologyPlacementGenerator: one key,
// required, here the lowest level that could hold the gang; every group of it
// that takes the gang now is tried, and the one whose GPUs are most allocated
// afterwards wins, at random among equal ones. Inside it, pods go as without a
// map. Members that have a node pin the group. A gang too large for any group
// has no key.
type Native struct{ rng *rand.Rand }

// Name describes the policy.
func (n *Native) Name() string { return "native, one key required" }

// Start seeds its choices.
func (n *Native) Start(_ *cluster, seed uint64) {
	n.rng = rand.New(rand.NewPCG(seed, 400))
}

// Place chooses a group, then node by node.
func (n *Native) Place(c *cluster, a *Ask) []int32 {
	var of []int32
	var sizes []int
	switch level(c, a) {
	case "leaf":
		of, sizes = c.leaf, c.leafSizes
	case "spine":
		of, sizes = c.spine, c.spineSizes
	default:
		return fill(n.rng, c, a, func(int32) bool { return true })
	}
	in := n.group(c, a, of, sizes)
	if in < 0 {
		return nil
	}
	return fill(n.rng, c, a, func(node int32) bool { return of[node] == in })
}

// group is the group that a gang goes to; -1 if it has to wait.
func (n *Native) group(c *cluster, a *Ask, of []int32, sizes []int) int32 {
	pods := int32(a.Pods)
	for _, node := range a.Placed {
		if node != nowhere {
			return of[node]
		}
	}
	room, free := make([]int32, len(sizes)), make([]int32, len(sizes))
	for node := range c.free {
		at := int32(node)
		room[of[node]] += c.room(at, a.GPUs)
		free[of[node]] += c.free[node]
	}
	best, most, ties := int32(-1), -1.0, 0
	for g := range sizes {
		if room[g] < pods {
			continue
		}
		used := 1 - float64(free[g]-pods*a.GPUs)/float64(sizes[g]*perNode)
		switch {
		case used > most:
			best, most, ties = int32(g), used, 1
		case used == most:
			if ties++; n.rng.IntN(ties) == 0 {
				best = int32(g)
			}
		}
	}
	return best
}
