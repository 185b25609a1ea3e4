package plugin

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/placement"
)

var _ framework.PlacementGeneratePlugin = (*Plugin)(nil)

// maxPlacements is the length of the list for a PodGroup: one plan, and as many
// more as a gang of ours gets before it lets go.
const maxPlacements = 1 + maxRetries

// GeneratePlacements lists where a native PodGroup may go: the tightest group of
// the map that holds it, then what is around that, one tier after another. In
// the first every member has a node by the plan made here. The others cost
// nothing unless that one fails (see trial): the framework tries all that it is
// given, and would then choose by score.
//
// A profile has one such plugin: it must disable TopologyPlacementGenerator,
// whose work this does as well.
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
		return nil, n.refuse(fault.Error())
	}
	t := &trial{group: n, nodes: parent.Nodes, asked: map[types.UID]bool{}, held: map[types.UID]bool{}}
	state.Write(trialKey, t)
	plan, why := p.planNative(ctx, t, nil, false)
	if why == "" {
		all.Placements = p.chart.shortlist(&plan, parent)
		return all, nil
	}
	if len(n.ranks) == 0 || !anybodyLower(parent.Nodes, n.ranks[0].pod) {
		return nil, n.refuse(why)
	}
	if _, never := p.planNative(ctx, t, nil, true); never != "" {
		return nil, n.refuse(why)
	}
	// The scheduler looks for victims only after it has tried a member:
	// DynamicResources fails otherwise. They are all refused.
	t.over = why
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
	return n.refuse("topology constraints of composite podgroups are not known here; its podgroups may have some")
}

// shortlist are the groups around a plan, the tightest first, and then all nodes:
// in each, a plan is made around the nodes that turned a member away before.
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
	for again := 1; len(out) < maxPlacements; again++ {
		out = append(out, &framework.Placement{Name: fmt.Sprintf("all nodes (%d)", again), Nodes: parent.Nodes})
	}
	return out
}
