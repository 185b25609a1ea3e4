package planner

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
)

// forest has the trees that gangs are planned on, with the scheduler's nodes.
type forest struct {
	// generation and fresh are of the answer that the trees are made from.
	generation uint64
	fresh      bool
	// fabric, nvlink and whole are one tree unless NVLink domains cross groups of the fabric.
	fabric, nvlink, whole *tree
	axes                  *placement.Axes
}

// tree is a topology tree. Nodes that topo-master's tree lacks are beside its groups.
type tree struct {
	placement *placement.Tree
	// ids holds the scheduler's nodes in its order; at holds the index in ids of each node of the
	// tree, or -1.
	ids []int32
	at  []int32
}

// update makes the trees again if topo-master's tree or the nodes have changed.
func (p *Planner) update(nodes []*Node) {
	f := &p.forest
	answer, _ := p.topology.Current()
	fresh := answer.Fresh(time.Now())
	renamed := p.table.follow(nodes)
	if f.fabric != nil && f.fresh == fresh && (!fresh || f.generation == answer.Generation) && !renamed {
		return
	}
	if !fresh {
		answer.Groups, answer.Domains = nil, nil
	}
	f.generation, f.fresh = answer.Generation, fresh
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	f.plant(answer.Groups, answer.Domains, names)
}

// plant makes the trees from topo-master's groups and from the domains that cross them.
func (f *forest) plant(groups, domains []v1alpha1.Group, names []string) {
	if f.axes = placement.NewAxes(groups, domains); f.axes != nil {
		f.fabric, f.nvlink = newTree(f.axes.Fabric, names), newTree(f.axes.NVLink, names)
		f.whole = newTree(f.axes.Whole, names)
	}
	if f.axes == nil || f.fabric == nil || f.nvlink == nil || f.whole == nil {
		one := newTree(groups, names)
		f.axes, f.fabric, f.nvlink, f.whole = nil, one, one, one
	}
}

// newTree makes a tree of groups with the scheduler's nodes. It returns nil for contradictory groups; the client has
// checked the groups of topo-master.
func newTree(groups []v1alpha1.Group, names []string) *tree {
	made, err := placement.New(groups, names...)
	if err != nil {
		return nil
	}
	t := &tree{placement: made, at: make([]int32, made.Len())}
	for i := range t.at {
		t.at[i] = -1
	}
	for i, name := range names {
		id, _ := made.ID(name)
		t.ids = append(t.ids, id)
		t.at[id] = int32(i)
	}
	return t
}

// of returns the tree for a gang: with whole groups if the gang names a kind of group that
// NVLink domains cross, else with whole domains.
func (f *forest) of(spec *gang.Spec) *tree {
	switch {
	case f.axes.Cuts(spec.Required) || f.axes.Cuts(spec.Preferred):
		return f.fabric
	case spec.GroupSize > 0:
		return f.whole
	}
	return f.nvlink
}

// kind returns topo-master's kind of a group of the trees.
func (f *forest) kind(of string) string {
	if of == placement.KindPart && f.axes != nil {
		return f.axes.Kind
	}
	return of
}

// largest returns, for every kind of group, the largest free amount in one group.
func (f *forest) largest(free []int32) map[string]int {
	out := map[string]int{}
	for _, t := range []*tree{f.fabric, f.nvlink} {
		in := make([]int32, t.placement.Len())
		for i, id := range t.ids {
			in[id] = free[i]
		}
		for kind, n := range t.placement.LargestFree(in) {
			out[f.kind(kind)] = max(out[f.kind(kind)], n)
		}
	}
	return out
}

// usable reports whether the tree lets a node take pods.
func (t *tree) usable(id int32) bool { return t.placement.Status(id) != v1alpha1.StatusNotReady }

// gang converts a gang for placement: consecutive members that are alike are a task.
func (t *tree) gang(g *Gang) (out placement.Gang, classes []*Class) {
	out.MinMember = g.MinMember
	for i := range g.Members {
		m := &g.Members[i]
		if last := max(i-1, 0); i == 0 || m.Class.Key != g.Members[last].Class.Key ||
			placement.TaskOf(m.Pod) != placement.TaskOf(g.Members[last].Pod) {
			at := slices.IndexFunc(classes, func(other *Class) bool { return other.Key == m.Class.Key })
			if at < 0 {
				at, classes = len(classes), append(classes, m.Class)
			}
			out.Tasks = append(out.Tasks, placement.Task{Name: placement.TaskOf(m.Pod), Class: at, GPUs: m.GPUs})
		}
		out.Tasks[len(out.Tasks)-1].Pods++
		if m.Node == "" {
			continue
		}
		id, ok := t.placement.ID(m.Node)
		if !ok {
			id = placement.None
		}
		out.Placed = append(out.Placed, placement.Member{Rank: i, Node: id})
	}
	for _, name := range g.Avoid {
		if id, ok := t.placement.ID(name); ok {
			out.Avoid = append(out.Avoid, id)
		}
	}
	return out, classes
}
