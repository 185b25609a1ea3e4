package explain

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Victim is a gang, or a pod of none, that preemption would evict.
type Victim struct {
	Name     string `json:"name"`
	Pods     int    `json:"pods"`
	Priority int32  `json:"priority"`
}

// scheduler is a planner for the cluster, and its nodes.
func (q *question) scheduler() (*planner.Planner, []framework.NodeInfo) {
	all := sgpu.GPUs{corev1.ResourceName(wellknown.DefaultDomains().VendorKey("gpu"))}
	var nodes []framework.NodeInfo
	for _, name := range slices.Sorted(maps.Keys(q.nodes)) {
		nodes = append(nodes, q.nodes[name])
		for name := range q.nodes[name].node.Status.Allocatable {
			if isGPU(name) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all[1:])
	return planner.New(topologyclient.Of(q.groups), gang.Place, all), nodes
}

// preempt finds what the scheduler would evict to make room.
func (p *plan) preempt(c *Cluster) (victims []Victim) {
	known := planner.Cluster{GangOf: map[types.UID]types.NamespacedName{}}
	for i := range c.Budgets {
		known.Budgets = append(known.Budgets, &c.Budgets[i])
	}
	d := wellknown.DefaultDomains()
	for i := range c.Pods {
		if spec, err := gang.Read(&c.Pods[i], d); err == nil {
			known.GangOf[c.Pods[i].UID] = together(&spec)
		}
	}
	_, leaving := p.planner.Preempt(&p.request, &known)
	for _, pod := range leaving {
		name := holderOf(pod)
		at := slices.IndexFunc(victims, func(v Victim) bool { return v.Name == name })
		if at < 0 {
			at = len(victims)
			victims = append(victims, Victim{Name: name, Priority: schedulehelpers.PodPriority(pod)})
		}
		victims[at].Pods++
		victims[at].Priority = max(victims[at].Priority, schedulehelpers.PodPriority(pod))
	}
	return victims
}

// together is one name for all gangs that run together or not at all.
func together(spec *gang.Spec) types.NamespacedName {
	return slices.MinFunc(append([]types.NamespacedName{spec.Key}, spec.Groups...), func(x, y types.NamespacedName) int {
		return cmp.Compare(x.String(), y.String())
	})
}
