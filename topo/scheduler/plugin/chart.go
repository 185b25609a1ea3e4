package plugin

import (
	"context"
	"log/slog"
	"slices"

	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// chart is the map with the nodes that the scheduler knows. Nodes that the map
// does not know stand beside its groups.
type chart struct {
	tree *placement.Tree
	// generation and fresh are of the map that the tree was made of.
	generation uint64
	fresh      bool
	// names and ids are of the scheduler's nodes, in its order; at is where a
	// node of the tree is among them, -1 if nowhere.
	names []string
	ids   []int32
	at    []int32
}

// update makes the tree anew if the map or the nodes are others than before.
func (c *chart) update(ctx context.Context, m topologyclient.Map, fresh bool, nodes []framework.NodeInfo, log *slog.Logger) {
	if c.tree != nil && c.fresh == fresh && (!fresh || c.generation == m.Generation) && c.same(nodes) {
		return
	}
	groups := m.Groups
	if !fresh {
		groups = nil
	}
	c.names = c.names[:0]
	for _, info := range nodes {
		c.names = append(c.names, info.Node().Name)
	}
	tree, err := placement.New(join(groups, c.names))
	if err != nil {
		log.WarnContext(ctx, "the map contradicts itself; gangs are placed without it", "err", err)
		// Names of API objects are unique, so nodes alone make a tree.
		tree, _ = placement.New(join(nil, c.names))
		fresh = false
	}
	c.tree, c.generation, c.fresh = tree, m.Generation, fresh
	c.ids, c.at = c.ids[:0], make([]int32, tree.Len())
	for i := range c.at {
		c.at[i] = -1
	}
	for i, name := range c.names {
		id, _ := tree.ID(name)
		c.ids = append(c.ids, id)
		c.at[id] = int32(i)
	}
}

// same tells whether these are the nodes of the tree, in the same order.
func (c *chart) same(nodes []framework.NodeInfo) bool {
	if len(nodes) != len(c.names) {
		return false
	}
	for i, info := range nodes {
		if c.names[i] != info.Node().Name {
			return false
		}
	}
	return true
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

// usable tells whether the map lets anything new on a node.
func (c *chart) usable(id int32) bool { return c.tree.Status(id) != v1alpha1.StatusNotReady }
