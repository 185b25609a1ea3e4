package planner

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"
)

// Preempt plans the gangs of a request with pods of a lower priority gone: none that do
// not terminate already if that is enough, else those of the fewest gangs. leaving are the
// pods that must be gone first; there are no plans without.
func (p *Planner) Preempt(r *Request, c *Cluster) (plans []Plan, leaving []*corev1.Pod) {
	if !r.MayPreempt() {
		return nil, nil
	}
	e := newEviction(p, r, c)
	set, plans := e.search()
	if plans == nil {
		return nil, nil
	}
	taken := nodesTaken(plans)
	for _, pod := range e.terminating {
		if taken[pod.Spec.NodeName] {
			leaving = append(leaving, pod)
		}
	}
	return plans, append(leaving, e.Pods(set)...)
}

func nodesTaken(plans []Plan) map[string]bool {
	taken := map[string]bool{}
	for i := range plans {
		for _, node := range plans[i].Nodes {
			taken[node] = true
		}
	}
	return taken
}

// MayPreempt reports whether there is a pod of a lower priority, and all members that need
// a node may preempt: for most gangs there is nothing to search.
func (r *Request) MayPreempt() bool {
	priority, may := r.preemptor()
	return may && AnyBelow(r.Nodes, priority)
}

// AnyBelow reports whether there is a pod of a lower priority on nodes.
func AnyBelow(nodes []framework.NodeInfo, priority int32) bool {
	return slices.ContainsFunc(nodes, func(info framework.NodeInfo) bool {
		return slices.ContainsFunc(info.GetPods(), func(on framework.PodInfo) bool {
			return schedulehelpers.PodPriority(on.GetPod()) < priority
		})
	})
}

// preemptor is the lowest priority of the members that need a node, and whether all of
// them may preempt.
func (r *Request) preemptor() (priority int32, may bool) {
	priority = math.MaxInt32
	for i := range r.Gangs {
		priority = min(priority, r.Gangs[i].priority())
		if slices.ContainsFunc(r.Gangs[i].Members, func(m Member) bool {
			policy := m.Pod.Spec.PreemptionPolicy
			return m.Node == "" && policy != nil && *policy == corev1.PreemptNever
		}) {
			return 0, false
		}
	}
	return priority, true
}
