package preemption

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Single evicts whole gangs of a lower priority for a pod of no gang, where kube-scheduler's
// preemption, which follows, would evict single pods of them. Without such gangs it does nothing.
func (p *Preemptor) Single(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []*fit.Node, asks *planner.Single,
	statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	const theirs, ours = framework.Unschedulable, framework.UnschedulableAndUnresolvable
	victims := p.victims(nodes, pod)
	if victims == nil {
		return nil, framework.NewStatus(theirs)
	}
	pods := p.Handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace)
	if now, err := pods.Get(pod.Name); err == nil {
		pod = now // With its last nomination.
	}
	// While pods leave its node nothing more is evicted, unless the node can never take the pod.
	if node := pod.Status.NominatedNodeName; node != "" && victims.Leave(node) && statuses.Get(node).Code() != ours {
		return nil, framework.NewStatus(ours, "pods that were preempted for it terminate")
	}
	var candidates []*fit.Node
	for _, n := range nodes {
		if statuses.Get(n.Name).Code() == theirs {
			candidates = append(candidates, n)
		}
	}
	ctx, done := p.search(ctx)
	node, evict := victims.Best(ctx, candidates, asks, func(node string, gone map[types.UID]bool) bool {
		return p.fitsWithout(ctx, state, pod, node, gone)
	})
	done()
	switch {
	case node == "":
		return Nominate(""), framework.NewStatus(ours, "evicting gangs or pods of a lower priority makes no room")
	case !p.evict(ctx, pod, "pod", evict):
		return nil, framework.NewStatus(ours)
	}
	return Nominate(node), nil
}

// victims returns the possible victims of a pod of no gang; nil to leave preemption to
// kube-scheduler.
func (p *Preemptor) victims(nodes []*fit.Node, pod *corev1.Pod) *planner.Victims {
	policy, priority := pod.Spec.PreemptionPolicy, schedulehelpers.PodPriority(pod)
	if p.Cache.IsNative(pod) || policy != nil && *policy == corev1.PreemptNever || !planner.AnyBelow(nodes, priority) {
		return nil
	}
	known := p.cluster()
	if len(known.GangOf) == 0 {
		return nil
	}
	if victims := planner.ReadVictims(nodes, known, priority); victims.HaveGangs() {
		return victims
	}
	return nil
}
