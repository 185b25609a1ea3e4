package preemption

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// maxCandidates bounds the nodes that are found to take a pod of no gang once others are gone:
// kube-scheduler's least number.
const maxCandidates = 100

// single is a pod of no gang that may have whole gangs evicted.
type single struct {
	preemptor *Preemptor
	state     framework.CycleState
	pod       *corev1.Pod
	asks      planner.Single
	victims   *planner.Victims
}

// Single has gangs of a lower priority evicted whole for a pod of no gang, where
// kube-scheduler's preemption, which follows, would evict pods of them. Without such gangs
// that is left to it.
func (p *Preemptor) Single(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, asks planner.Single,
	statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	const theirs, ours = framework.Unschedulable, framework.UnschedulableAndUnresolvable
	s := p.newSingle(state, pod, asks)
	if s == nil {
		return nil, framework.NewStatus(theirs)
	}
	if s.awaits(statuses) {
		return nil, framework.NewStatus(ours, "pods that were preempted for it terminate")
	}
	begin := time.Now()
	node, set, err := s.search(ctx, statuses)
	p.observe(begin)
	switch {
	case err != nil:
		return nil, framework.AsStatus(err)
	case node == "":
		return Nominate(""), framework.NewStatus(ours, "no gangs or pods of a lower priority whose eviction makes room")
	case !p.evict(ctx, pod, "pod", s.victims.Pods(set)):
		return nil, framework.NewStatus(ours)
	}
	return Nominate(node), nil
}

// newSingle is nil if a pod preempts as kube-scheduler has it.
func (p *Preemptor) newSingle(state framework.CycleState, pod *corev1.Pod, asks planner.Single) *single {
	policy, priority := pod.Spec.PreemptionPolicy, schedulehelpers.PodPriority(pod)
	if p.Cache.IsNative(pod) || policy != nil && *policy == corev1.PreemptNever {
		return nil
	}
	nodes, err := p.Handle.SnapshotSharedLister().NodeInfos().List()
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
	pods := p.Handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace)
	if now, err := pods.Get(pod.Name); err == nil {
		pod = now // With its last nomination.
	}
	return &single{preemptor: p, state: state, pod: pod, asks: asks, victims: victims}
}

// awaits reports whether pods of a lower priority terminate on the node that the pod is
// nominated for: nothing more is evicted meanwhile, unless the node takes it never.
func (s *single) awaits(statuses framework.NodeToStatusReader) bool {
	node := s.pod.Status.NominatedNodeName
	return node != "" && len(s.victims.Gone(node, nil)) > 0 &&
		statuses.Get(node).Code() != framework.UnschedulableAndUnresolvable
}

// search finds the node and the best set of victims there; no node if none is enough.
func (s *single) search(
	ctx context.Context, statuses framework.NodeToStatusReader,
) (node string, best []int, err error) {
	all := s.preemptor.Handle.SnapshotSharedLister().NodeInfos()
	nodes, err := statuses.NodesForStatusCode(all, framework.Unschedulable)
	if err != nil {
		return "", nil, err
	}
	found := 0
	candidates := s.victims.Candidates(nodes, &s.asks)
	for i := range candidates {
		c := &candidates[i]
		if found >= maxCandidates || node != "" && !s.victims.MayBeat(c, best) {
			break
		}
		name := c.Info.Node().Name
		if set, ok := c.Choose(func(set []int) bool {
			return s.preemptor.fitsWithout(ctx, s.state, s.pod, c.Info, s.victims.Gone(name, set))
		}); ok {
			if found++; node == "" || s.victims.Better(set, best) {
				node, best = name, set
			}
		}
	}
	return node, best, nil
}
