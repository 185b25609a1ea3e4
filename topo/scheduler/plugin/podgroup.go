package plugin

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
)

// GeneratePlacements gives every member of a native PodGroup a node by a plan, among
// all nodes. It lists them as often as the group may be planned: the framework tries
// out all that it is given, but what follows a success costs nothing.
//
// A profile has one such plugin: it must disable TopologyPlacementGenerator, of which
// this does the work as well.
func (p *Plugin) GeneratePlacements(
	_ context.Context, state framework.PodGroupCycleState, group framework.PodGroupInfo, parent *framework.Placement,
) (*framework.GeneratePlacementsResult, *framework.Status) {
	key := types.NamespacedName{Namespace: group.GetNamespace(), Name: group.GetName()}
	reject := func(reason string) (*framework.GeneratePlacementsResult, *framework.Status) {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, gangcache.Rejection(key, reason))
	}
	all := &framework.GeneratePlacementsResult{Placements: []*framework.Placement{parent}}
	if group.GetType() == framework.CompositePodGroupKeyType {
		// Its PodGroups are placed one by one, each as tight as possible.
		o := group.GetCompositePodGroup()
		if o != nil && o.Spec.SchedulingConstraints != nil && len(o.Spec.SchedulingConstraints.Topology) > 0 {
			return reject("topology constraints of composite podgroups are not supported; its podgroups may have some")
		}
		return all, nil
	}
	if !p.args.GenericWorkload {
		return reject(errNotNative.Error())
	}
	c, err := p.podGroups.read(key, group)
	if err != nil {
		return reject(err.Error())
	}
	c.nodes = parent.Nodes
	state.Write(podGroupKey, c)
	ok, reason := p.podGroups.plan(c, true)
	switch {
	case !ok:
		return reject(reason)
	case len(c.leaving) > 0:
		// PodGroupPostFilter evicts, after a member was tried. All members are rejected.
		c.over = reason
	default:
		for i := range maxPlacements - 1 {
			all.Placements = append(all.Placements, &framework.Placement{Name: fmt.Sprintf("plan %d", i+2), Nodes: parent.Nodes})
		}
	}
	return all, nil
}

// PodGroupPostFilter has whole gangs evicted for a native PodGroup: those of its plan. It
// runs before kube-scheduler's preemption, to which gangs of labels are single pods.
func (p *Plugin) PodGroupPostFilter(
	ctx context.Context, state framework.PodGroupCycleState, group framework.PodGroupInfo,
	schedule framework.PodGroupSchedulingFunc,
) (*framework.PodGroupPostFilterResult, *framework.Status) {
	data, _ := state.Read(podGroupKey)
	c, _ := data.(*podGroupCycle)
	if c == nil || len(c.leaving) == 0 {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	return p.preemptor.PodGroup(ctx, group, c.leaving, schedule)
}
