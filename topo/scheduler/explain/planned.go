package explain

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
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

// request is the question in the scheduler's own form: which plan would it make?
func (q *question) request(
	a *Answer, spec *gang.Spec, members []*corev1.Pod, least int,
) (*planner.Planner, *planner.Request) {
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	g := planner.Gang{Key: key, Spec: *spec, MinMember: a.Bound + least}
	for _, pod := range members {
		if pod.Status.Phase != corev1.PodFailed {
			g.Members = append(g.Members, planner.Member{
				Pod: pod, Class: fit.ClassOf(pod, nil), GPUs: int(gpus(pod)), Node: pod.Spec.NodeName,
			})
		}
	}
	names := map[corev1.ResourceName]bool{}
	r := &planner.Request{Gangs: []planner.Gang{g}}
	for _, n := range q.nodes {
		r.Nodes = append(r.Nodes, n)
		for name := range n.node.Status.Allocatable {
			names[name] = isGPU(name)
		}
	}
	slices.SortFunc(r.Nodes, func(x, y framework.NodeInfo) int { return cmp.Compare(x.Node().Name, y.Node().Name) })
	all := sgpu.GPUs{corev1.ResourceName(wellknown.DefaultDomains().VendorKey("gpu"))}
	for name, is := range names {
		if is && name != all[0] {
			all = append(all, name)
		}
	}
	slices.Sort(all[1:])
	return planner.New(topologyclient.Of(q.groups), gang.Place, all), r
}

// preempt finds what the scheduler would evict to make room.
func preempt(p *planner.Planner, r *planner.Request, c *Cluster) (victims []Victim) {
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
	_, leaving := p.Preempt(r, &known)
	for _, pod := range leaving {
		name := pod.Namespace + "/" + pod.Name
		if m, ok := gang.MemberOf(pod, gpus(pod)); ok {
			name = m.Gang
		}
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
