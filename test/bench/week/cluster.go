package week

import (
	"fmt"
	"math/rand/v2"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// perNode is how many GPUs a node has.
const perNode = 8

// nowhere is a pod without a node.
const nowhere = placement.None

// Plan is the shape of a cluster.
type Plan struct {
	Name string
	// Leaves are the sizes of the leaf groups of a spine, in nodes; Spines is
	// how many spines there are. Shuffle deals the leaves out at random.
	Leaves  []int
	Spines  int
	Shuffle bool
	// Load is the share of the GPUs that the trace asks for.
	Load float64
}

// Irregular is a cluster as a public account of a real one has it: leaf groups
// of 1 to 11 nodes.
func Irregular() Plan {
	return Plan{
		Name: "960 nodes, groups of 1 to 11", Leaves: []int{1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 6, 6, 6, 8, 11},
		Spines: 15, Shuffle: true, Load: 0.7,
	}
}

// Small is a part of it, on which a week takes little time.
func Small() Plan {
	p := Irregular()
	p.Name, p.Spines = "128 nodes, groups of 1 to 11", 2
	return p
}

// Racks is a cluster of NVLink racks.
func Racks() Plan {
	return Plan{
		Name: "1,152 nodes, racks of 18", Leaves: []int{18, 18, 18, 18, 18, 18, 18, 18}, Spines: 8, Load: 0.7,
	}
}

// cluster is the state of the nodes.
type cluster struct {
	plan Plan
	tree *placement.Tree
	// groups make the tree.
	groups []v1alpha1.Group
	// free are the free GPUs of each node.
	free []int32
	down []bool
	// leaf and spine are each node's; the sizes are in nodes.
	leaf, spine           []int32
	leafSizes, spineSizes []int
}

func newCluster(plan Plan, seed uint64) *cluster {
	rng := rand.New(rand.NewPCG(seed, 200))
	var sizes []int
	for range plan.Spines {
		sizes = append(sizes, plan.Leaves...)
	}
	if plan.Shuffle {
		rng.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	}
	c := &cluster{plan: plan}
	var groups []v1alpha1.Group
	for s := range plan.Spines {
		spine := v1alpha1.Group{Name: fmt.Sprintf("spine-%03d", s), Kind: "spine"}
		inSpine := 0
		for range plan.Leaves {
			leaf := int32(len(c.leafSizes))
			size := sizes[leaf]
			in := v1alpha1.Group{Name: fmt.Sprintf("leaf-%04d", leaf), Kind: "leaf"}
			for range size {
				in.Child = append(in.Child, v1alpha1.Group{Name: fmt.Sprintf("node-%05d", len(c.free)), Kind: v1alpha1.KindNode})
				c.free = append(c.free, perNode)
				c.leaf = append(c.leaf, leaf)
				c.spine = append(c.spine, int32(s))
			}
			spine.Child = append(spine.Child, in)
			c.leafSizes = append(c.leafSizes, size)
			inSpine += size
		}
		groups = append(groups, spine)
		c.spineSizes = append(c.spineSizes, inSpine)
	}
	c.down = make([]bool, len(c.free))
	tree, err := placement.New(groups)
	if err != nil {
		panic(err) // The names above are all different.
	}
	c.tree, c.groups = tree, groups
	return c
}

// room is how many pods with this number of GPUs a node takes now.
func (c *cluster) room(node int32, gpus int32) int32 {
	if c.down[node] {
		return 0
	}
	return max(0, c.free[node]) / gpus
}

// take books pods, or takes them back.
func (c *cluster) take(nodes []int32, gpus, times int32) {
	for _, n := range nodes {
		if n != nowhere {
			c.free[n] -= times * gpus
		}
	}
}
