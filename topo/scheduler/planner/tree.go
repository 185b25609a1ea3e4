package planner

import (
	"slices"
	"time"

	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// tree is the topology tree with the nodes that the scheduler has. Nodes that are
// not in topo-master's tree are beside its groups.
type tree struct {
	placement *placement.Tree
	// generation and fresh are of the answer that the tree is made from.
	generation uint64
	fresh      bool
	// names and ids are of the scheduler's nodes, in its order; at is the index there
	// of a node of the tree, -1 for none.
	names []string
	ids   []int32
	at    []int32
}

// update makes another tree if topo-master's tree or the nodes have changed.
func (p *Planner) update(nodes []framework.NodeInfo) {
	t := &p.tree
	answer, _ := p.topology.Current()
	fresh := answer.Fresh(time.Now())
	same := slices.EqualFunc(nodes, t.names, func(info framework.NodeInfo, name string) bool {
		return info.Node().Name == name
	})
	if t.placement != nil && t.fresh == fresh && (!fresh || t.generation == answer.Generation) && same {
		return
	}
	if !fresh {
		answer.Groups = nil
	}
	t.names = t.names[:0]
	for _, info := range nodes {
		t.names = append(t.names, info.Node().Name)
	}
	// No error: the client has checked the groups, and names of nodes are unique.
	t.placement, _ = placement.New(join(answer.Groups, t.names))
	t.generation, t.fresh = answer.Generation, fresh
	t.ids, t.at = t.ids[:0], make([]int32, t.placement.Len())
	for i := range t.at {
		t.at[i] = -1
	}
	for i, name := range t.names {
		id, _ := t.placement.ID(name)
		t.ids = append(t.ids, id)
		t.at[id] = int32(i)
	}
}

// join adds nodes that the groups do not have.
func join(groups []v1alpha1.Group, nodes []string) []v1alpha1.Group {
	known := make(map[string]bool, len(nodes))
	var walk func([]v1alpha1.Group)
	walk = func(groups []v1alpha1.Group) {
		for i := range groups {
			if groups[i].Kind == v1alpha1.KindNode {
				known[groups[i].Name] = true
			} else {
				walk(groups[i].Child)
			}
		}
	}
	walk(groups)
	out := slices.Clip(groups)
	for _, name := range nodes {
		if !known[name] {
			out = append(out, v1alpha1.Group{Name: name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady})
		}
	}
	return out
}

// usable reports whether the tree lets a node take pods.
func (t *tree) usable(id int32) bool { return t.placement.Status(id) != v1alpha1.StatusNotReady }

// gang is what placement needs of a gang: tasks are runs of members that are alike.
func (t *tree) gang(g *Gang) (out placement.Gang, classes []*fit.Class) {
	out.MinMember = g.MinMember
	for rank := range g.Members {
		m := &g.Members[rank]
		if last := max(rank-1, 0); rank == 0 || m.Class.Key != g.Members[last].Class.Key ||
			gang.Task(m.Pod) != gang.Task(g.Members[last].Pod) {
			at := slices.IndexFunc(classes, func(other *fit.Class) bool { return other.Key == m.Class.Key })
			if at < 0 {
				at, classes = len(classes), append(classes, m.Class)
			}
			out.Tasks = append(out.Tasks, placement.Task{Name: gang.Task(m.Pod), Class: at, GPUs: m.GPUs})
		}
		out.Tasks[len(out.Tasks)-1].Pods++
		if m.Node == "" {
			continue
		}
		id, ok := t.placement.ID(m.Node)
		if !ok {
			id = placement.None
		}
		out.Placed = append(out.Placed, placement.Member{Rank: rank, Node: id})
	}
	for _, name := range g.Avoid {
		if id, ok := t.placement.ID(name); ok {
			out.Avoid = append(out.Avoid, id)
		}
	}
	return out, classes
}

// place finds the tightest place; with a label, on nodes with one value of it.
func (t *tree) place(
	nodes []framework.NodeInfo, g *placement.Gang, capacity *placement.Capacity, label string,
) (placement.Plan, error) {
	if label == "" {
		return placement.Place(t.placement, g, capacity)
	}
	values := make([]string, t.placement.Len())
	for at, id := range t.ids {
		values[id] = nodes[at].Node().Labels[label]
	}
	s := search{tree: t.placement, gang: g, capacity: capacity, label: label, values: values}
	return s.place()
}
