package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Kubernetes schedules the PodGroups of a CompositePodGroup in one cycle, one after another, each on the nodes that
// GeneratePlacements returned for the composite, and takes all back if too few of them have a place.

// compositePlacement returns the nodes that the PodGroups of a composite may use: all, or those with one value of its
// topology constraint. Of the values with room for its PodGroups, each by its own rules, that with the fewest idle GPUs
// wins, so that larger ones stay whole.
func (p *Plugin) compositePlacement(
	ctx context.Context, group framework.PodGroupInfo, parent *framework.Placement,
) (*framework.Placement, error) {
	object := group.GetCompositePodGroup()
	if object == nil {
		return nil, errors.New("CompositePodGroup not found")
	}
	constraints := object.Spec.SchedulingConstraints
	if constraints == nil || len(constraints.Topology) == 0 {
		return parent, nil
	}
	key := constraints.Topology[0].Key // The API allows one.
	gangs, err := p.readComposite(group)
	if err != nil {
		return nil, err
	}
	least := len(gangs)
	if policy := object.Spec.SchedulingPolicy.Gang; policy == nil {
		least = 1
	} else {
		least = min(least, int(policy.MinGroupCount))
	}
	values, err := domainsOf(key, gangs, parent.Nodes)
	if err != nil {
		return nil, err
	}
	free := map[string]int64{}
	for value, nodes := range values {
		for _, info := range nodes {
			free[value] += p.gpus.Use(nil, info).Idle
		}
	}
	why := fmt.Errorf("no node has the label %s", key)
	for n := len(gangs); n >= least; n-- { // As many of them as possible.
		for _, value := range slices.SortedFunc(maps.Keys(values), func(a, b string) int {
			return cmp.Or(cmp.Compare(free[a], free[b]), cmp.Compare(a, b))
		}) {
			reason := p.fitIn(ctx, gangs[:n], values[value])
			if reason == "" {
				return &framework.Placement{Name: value, Nodes: values[value]}, nil
			}
			why = fmt.Errorf("%s %s: %s", key, value, reason)
		}
	}
	return nil, why
}

// readComposite converts the PodGroups of a composite to gangs that run together.
func (p *Plugin) readComposite(group framework.PodGroupInfo) (gangs []planner.Gang, err error) {
	for _, child := range group.GetChildren() {
		if child.GetType() == framework.CompositePodGroupKeyType {
			return nil, fmt.Errorf(
				"its topology constraint is unsupported beside the composite podgroup %s among its groups", child.GetName())
		}
		c, err := p.readPodGroup(types.NamespacedName{Namespace: child.GetNamespace(), Name: child.GetName()}, child)
		if err != nil {
			return nil, fmt.Errorf("podgroup %s: %w", child.GetName(), err)
		}
		gangs = append(gangs, c.gang)
	}
	return gangs, nil
}

// domainsOf returns the nodes with each value of a label: of members that have a node only theirs.
func domainsOf(key string, gangs []planner.Gang, infos []framework.NodeInfo) (map[string][]framework.NodeInfo, error) {
	placed := map[string]bool{}
	for i := range gangs {
		for _, m := range gangs[i].Members {
			placed[m.Node] = m.Node != ""
		}
	}
	domains, used := map[string][]framework.NodeInfo{}, map[string]bool{}
	for _, info := range infos {
		value, ok := info.Node().Labels[key]
		if used[value] = used[value] || placed[info.Node().Name]; ok {
			domains[value] = append(domains[value], info)
		}
	}
	maps.DeleteFunc(used, func(_ string, is bool) bool { return !is })
	switch {
	case len(used) > 1:
		return nil, fmt.Errorf("its pods are on nodes with several values of %s already", key)
	case len(used) == 1:
		maps.DeleteFunc(domains, func(value string, _ []framework.NodeInfo) bool { return !used[value] })
	}
	return domains, nil
}

// fitIn returns why gangs do not fit on some nodes; empty if they do.
func (p *Plugin) fitIn(ctx context.Context, gangs []planner.Gang, infos []framework.NodeInfo) string {
	request := planner.Request{Query: planner.Query{Nodes: p.nodesOf(infos)}}
	for _, g := range gangs {
		if slices.ContainsFunc(g.Members, func(m planner.Member) bool { return m.Node == "" }) {
			request.Gangs = append(request.Gangs, g)
		}
	}
	if len(request.Gangs) == 0 {
		return ""
	}
	return p.plan(ctx, &request, false).Reason
}
