package preemption

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Single has gangs of a lower priority evicted whole for a pod of no gang, where
// kube-scheduler's preemption, which follows, would evict pods of them. Without such gangs
// that is left to it.
func (p *Preemptor) Single(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, asks *planner.Single,
	statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	const theirs, ours = framework.Unschedulable, framework.UnschedulableAndUnresolvable
	snapshot := p.Handle.SnapshotSharedLister().NodeInfos()
	victims := p.victims(snapshot, pod)
	if victims == nil {
		return nil, framework.NewStatus(theirs)
	}
	pods := p.Handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace)
	if now, err := pods.Get(pod.Name); err == nil {
		pod = now // With its last nomination.
	}
	// Nothing more is evicted while pods leave the node, unless it takes the pod never.
	if node := pod.Status.NominatedNodeName; node != "" && victims.Leave(node) && statuses.Get(node).Code() != ours {
		return nil, framework.NewStatus(ours, "pods that were preempted for it terminate")
	}
	nodes, err := statuses.NodesForStatusCode(snapshot, theirs)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	begin := time.Now()
	node, evict := victims.Best(nodes, asks, func(info framework.NodeInfo, gone map[types.UID]bool) bool {
		return p.fitsWithout(ctx, state, pod, info, gone)
	})
	p.observe(begin)
	switch {
	case node == "":
		return Nominate(""), framework.NewStatus(ours, "no gangs or pods of a lower priority whose eviction makes room")
	case !p.evict(ctx, pod, "pod", evict):
		return nil, framework.NewStatus(ours)
	}
	return Nominate(node), nil
}

// victims are those that there may be for a pod of no gang; nil if it preempts as
// kube-scheduler has it.
func (p *Preemptor) victims(snapshot framework.NodeInfoLister, pod *corev1.Pod) *planner.Victims {
	policy, priority := pod.Spec.PreemptionPolicy, schedulehelpers.PodPriority(pod)
	if p.Cache.IsNative(pod) || policy != nil && *policy == corev1.PreemptNever {
		return nil
	}
	nodes, err := snapshot.List()
	if err != nil || !planner.AnyBelow(nodes, priority) {
		return nil
	}
	known := p.cluster()
	if len(known.GangOf) == 0 {
		return nil
	}
	victims := planner.ReadVictims(nodes, known, priority)
	if !victims.HaveGangs() {
		return nil
	}
	return victims
}
