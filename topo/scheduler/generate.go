package scheduler

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/placement"
)

var _ framework.PlacementGeneratePlugin = (*Plugin)(nil)

// maxPlacements bounds the list for a PodGroup.
const maxPlacements = 4

// GeneratePlacements lists where a native PodGroup may go: the tightest group of
// the map that holds it, then what is around that, one tier after another. In
// the first every member has a node by the plan made here. The others cost
// nothing unless that one fails (see trial): the framework tries all that it is
// given, and would then choose by score.
//
// The framework asks one plugin only: the profile must disable
// TopologyPlacementGenerator, whose work this does as well.
func (p *Plugin) GeneratePlacements(
	ctx context.Context, state framework.PodGroupCycleState, group framework.PodGroupInfo, parent *framework.Placement,
) (*framework.GeneratePlacementsResult, *framework.Status) {
	all := &framework.GeneratePlacementsResult{Placements: []*framework.Placement{parent}}
	if group.GetType() == framework.CompositePodGroupKeyType {
		return all, p.composite(group)
	}
	n, fault := p.nativeOf(group)
	if fault == nil && !p.args.GenericWorkload {
		fault = errNotNative
	}
	if fault != nil {
		return nil, n.refuse(fault.Error(), false)
	}
	plan, found, resolvable, why := p.planNative(ctx, n, parent.Nodes, nil)
	if why != "" {
		return nil, n.refuse(why, resolvable)
	}
	state.Write(trialKey, &trial{
		group: n, nodes: parent.Nodes, places: found, asked: map[types.UID]bool{}, held: map[types.UID]bool{},
	})
	all.Placements = p.chart.shortlist(&plan, parent)
	return all, nil
}

// composite lets the children of a composite PodGroup be placed one by one, each
// as tight as it goes. What all of them must share is refused rather than
// ignored.
func (p *Plugin) composite(group framework.PodGroupInfo) *framework.Status {
	object := group.GetCompositePodGroup()
	if object == nil || object.Spec.SchedulingConstraints == nil || len(object.Spec.SchedulingConstraints.Topology) == 0 {
		return nil
	}
	n := native{entry: entry{key: types.NamespacedName{Namespace: group.GetNamespace(), Name: group.GetName()}}}
	return n.refuse("heddle-scheduler does not know topology constraints of composite podgroups; its podgroups may have them", false)
}

// shortlist are the groups around a plan, the tightest first, and all nodes
// last, at most maxPlacements and at least two, so that a plan can be made again
// around a node that turned a pod away.
func (c *chart) shortlist(plan *placement.Plan, parent *framework.Placement) []*framework.Placement {
	var out []*framework.Placement
	add := func(name string, first, end int32) {
		nodes := make([]framework.NodeInfo, 0, end-first)
		for id := first; id < end; id++ {
			if at := c.at[id]; at >= 0 {
				nodes = append(nodes, parent.Nodes[at])
			}
		}
		if n := len(out); len(nodes) > 0 && (n == 0 || len(nodes) > len(out[n-1].Nodes)) {
			out = append(out, &framework.Placement{Name: name, Nodes: nodes})
		}
	}
	at := plan.Index
	if plan.Index < 0 && plan.Group.Name != "" {
		add(plan.Group.Name, plan.Group.First, plan.Group.End)
		at = c.tree.Home(plan.Group.First)
	}
	for at > 0 && len(out) < maxPlacements-1 {
		g := c.tree.Group(at)
		add(g.Name, g.First, g.End)
		at = g.Parent
	}
	if n := len(out); n == 0 || len(out[n-1].Nodes) < len(parent.Nodes) {
		out = append(out, &framework.Placement{Name: "all nodes", Nodes: parent.Nodes})
	}
	if len(out) == 1 {
		out = append(out, &framework.Placement{Name: out[0].Name + ", again", Nodes: out[0].Nodes})
	}
	return out
}
