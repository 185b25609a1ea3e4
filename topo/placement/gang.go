package placement

// Gang is a set of pods that run together or not at all. Its ranks are its
// pods, numbered from 0: the tasks in order, then by index.
type Gang struct {
	// Tasks are the gang's roles: master, then workers.
	Tasks []Task
	// Slice is the number of GPUs of consecutive ranks that work most closely together, in one
	// lowest group. Pods without GPUs do not count. 0 means no slices.
	Slice int
	// Require is the kind of the group that must hold the gang: a kind of the
	// tree, or "node". Empty: anything.
	Require string
	// Prefer is the kind of the group that should hold the gang, if one does.
	// Empty, or a kind that the tree does not have: the tightest of any kind.
	Prefer string
	// Placed are the pods that have a node already.
	Placed []Member
	// Avoid are nodes that get none of its pods.
	Avoid []int32
	// MinMember is the number of pods that must have a node now, placed ones included. Of
	// the rest, the lowest ranks get one if there is room. 0: all.
	MinMember int
}

// Task is a role in a gang: pods that are alike.
type Task struct {
	// Name appears in rejections.
	Name string
	// Class selects how many of them fit where: an index into Capacity.Fit.
	Class int
	// Pods is the number of pods, and GPUs the number of GPUs that each requests.
	Pods, GPUs int
}

// Member is a pod that has a node.
type Member struct {
	Rank int
	// Node is None if the tree does not have it.
	Node int32
}

// Capacity is the room that nodes have now.
type Capacity struct {
	// Fit is the number of pods of a class that a node takes, if it gets no other pod of the gang:
	// Fit[class][node]. Running pods of the gang are subtracted.
	Fit [][]int32
	// Free is the free amount on each node of what pods compete for, in any unit:
	// of nodes that take as many pods, the one with the least comes first. Nil
	// is nothing.
	Free []int32
	// Together reports whether a node takes the given number of pods of each class at once. It
	// is called only for gangs with unlike classes, and must not keep pods. Nil
	// is the rule that holds whatever the pods ask for: the sum of pods/fit is
	// at most 1. That rule rejects a pod without GPUs beside pods that have all
	// the GPUs of a node.
	Together func(node int32, pods []int32) bool
}

// holds reports whether a node takes the given number of pods of each class at once.
func (c *Capacity) holds(node int32, pods []int32) bool {
	sum := 0.0
	for class, n := range pods {
		switch fit := c.Fit[class][node]; {
		case n == 0:
		case n > fit:
			return false
		default:
			sum += float64(n) / float64(fit)
		}
	}
	const rounding = 1e-12
	return sum <= 1+rounding || c.Together != nil && c.Together(node, pods)
}

// Plan assigns a node to every pod of a gang.
type Plan struct {
	// Nodes holds the nodes of the ranks; None for ranks beyond MinMember that do not fit now.
	// Placed members keep their node; it is None if the tree does not have it.
	Nodes []int32
	// Group is the tightest group that holds all of them; one node is a group
	// of kind "node" and tier 0. Its name and kind are empty if it is the root,
	// or if a node in no group is among several.
	Group Group
	// Pods is the number of ranks with a node, in the tree or not.
	Pods int
}
