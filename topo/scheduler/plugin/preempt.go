package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Pods of a lower priority are evicted to make room for gangs, for native PodGroups, and for pods
// of no gang. A gang is evicted whole or not at all. planner decides which pods must leave; here
// the scheduler's filters are tried without them. The gang cache has what is to be evicted for a
// gang, and whether the eviction has begun.
const (
	// searchFor bounds the time of a search for victims. Other bounds end it long before, unless the
	// machine is overloaded.
	searchFor = 5 * time.Second
	// parallelEvictions is how many pods are evicted at once.
	parallelEvictions = 16
)

// planWithout plans gangs with pods of a lower priority gone, if all of their members may preempt.
func (p *Plugin) planWithout(ctx context.Context, r *planner.Request) planner.Plan {
	if !r.MayPreempt() {
		return planner.Plan{}
	}
	ctx, cancel := context.WithTimeout(ctx, searchFor)
	defer cancel()
	defer p.observe("preempting", time.Now())
	return p.planner.Preempt(ctx, r, p.cluster())
}

func (p *Plugin) cluster() *planner.Cluster {
	budgets, _ := p.budgets.List(labels.Everything()) // A list from memory has no errors.
	return &planner.Cluster{GangOf: p.cache.GangOf(), Budgets: budgets}
}

// preemptForPod evicts whole gangs of a lower priority for a pod of no gang, where kube-scheduler's
// preemption, which follows, would evict single pods of them. Without such gangs it does nothing.
func (p *Plugin) preemptForPod(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	const theirs, ours = framework.Unschedulable, framework.UnschedulableAndUnresolvable
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, framework.AsStatus(fmt.Errorf("list nodes: %w", err))
	}
	nodes := p.nodesOf(infos)
	victims := p.victims(nodes, pod)
	if victims == nil {
		return nil, framework.NewStatus(theirs)
	}
	pods := p.handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace)
	if now, err := pods.Get(pod.Name); err == nil {
		pod = now // With its last nomination.
	}
	// While pods leave its node nothing more is evicted, unless the node can never take the pod.
	if node := pod.Status.NominatedNodeName; node != "" && victims.Leave(node) && statuses.Get(node).Code() != ours {
		return nil, framework.NewStatus(ours, "pods that were preempted for it terminate")
	}
	var candidates []*planner.Node
	for _, n := range nodes {
		if statuses.Get(n.Name).Code() == theirs {
			candidates = append(candidates, n)
		}
	}
	within, cancel := context.WithTimeout(ctx, searchFor)
	defer cancel()
	begin := time.Now()
	node, evict := victims.Best(within, candidates, func(node string, gone map[types.UID]bool) bool {
		return p.fitsWithout(within, state, pod, node, gone)
	})
	p.observe("preempting", begin)
	switch {
	case node == "":
		return nominate(""), framework.NewStatus(ours, "evicting gangs or pods of a lower priority makes no room")
	case !p.evict(ctx, pod, "pod", evict):
		return nil, framework.NewStatus(ours)
	}
	return nominate(node), nil
}

// victims returns the possible victims of a pod of no gang; nil to leave preemption to
// kube-scheduler.
func (p *Plugin) victims(nodes []*planner.Node, pod *corev1.Pod) *planner.Victims {
	policy, priority := pod.Spec.PreemptionPolicy, schedulehelpers.PodPriority(pod)
	if p.cache.IsNative(pod) || policy != nil && *policy == corev1.PreemptNever || !planner.AnyBelow(nodes, priority) {
		return nil
	}
	if victims := planner.ReadVictims(nodes, p.cluster(), priority); victims.HaveGangs() {
		return victims
	}
	return nil
}

// leavesRoom reports whether a member's plan expects pods to leave, and no filter rejects the
// member on its node once they have left.
func (p *Plugin) leavesRoom(ctx context.Context, state framework.CycleState, pod *corev1.Pod, c *cycle) bool {
	if len(c.Leaving) == 0 {
		return false
	}
	gone := make(map[types.UID]bool, len(c.Leaving))
	for _, l := range c.Leaving {
		gone[l.UID] = true
	}
	return p.fitsWithout(ctx, state, pod, c.Node, gone)
}

// fitsWithout reports whether some pods are on a node, and no filter rejects another pod there
// once they have left.
func (p *Plugin) fitsWithout(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string, gone map[types.UID]bool,
) bool {
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return false
	}
	without, trial, some := info.Snapshot(), state.Clone(), false
	for _, on := range info.GetPods() {
		if !gone[on.GetPod().UID] {
			continue
		}
		some = true
		if err := without.RemovePod(logr.FromContextOrDiscard(ctx), on.GetPod()); err != nil {
			return false
		}
		if !p.handle.RunPreFilterExtensionRemovePod(ctx, trial, pod, on, without).IsSuccess() {
			return false
		}
	}
	return some && p.handle.RunFilterPluginsWithNominatedPods(ctx, trial, pod, without).IsSuccess()
}

// evictVictims evicts the pods that must leave for a member's gang, once for all members, and
// reports whether the eviction has begun.
func (p *Plugin) evictVictims(ctx context.Context, preemptor *corev1.Pod) bool {
	victims, begun := p.cache.Preempt(preemptor)
	if len(victims) == 0 {
		return begun
	}
	if !p.evict(ctx, preemptor, "podgroup of pod", victims) {
		p.cache.NotEvicted(preemptor)
		return false
	}
	return true
}

// nominate nominates a pod for a node, or for none.
func nominate(node string) *framework.PostFilterResult {
	return &framework.PostFilterResult{NominatingInfo: &framework.NominatingInfo{
		NominatedNodeName: node, NominatingMode: framework.ModeOverride,
	}}
}

// evict evicts the pods that make room for the preemptor; kind names it in Events.
func (p *Plugin) evict(ctx context.Context, preemptor *corev1.Pod, kind string, victims []*corev1.Pod) bool {
	var all errgroup.Group
	all.SetLimit(parallelEvictions)
	for _, victim := range victims {
		if victim.DeletionTimestamp == nil {
			all.Go(func() error { return p.evictPod(ctx, preemptor, kind, victim) })
		}
	}
	log := p.log.With("pod", preemptor.Namespace+"/"+preemptor.Name, "preemptor", kind)
	if err := all.Wait(); err != nil {
		log.ErrorContext(ctx, "preemption failed, will retry", "err", err)
		return false
	}
	log.InfoContext(ctx, "preempted pods of a lower priority", "victims", len(victims))
	return true
}

// evictPod does what kube-scheduler's preemption does to a victim.
func (p *Plugin) evictPod(ctx context.Context, preemptor *corev1.Pod, kind string, victim *corev1.Pod) error {
	const reason = "preempted"
	waiting, binding := p.handle.GetWaitingPod(victim.UID), p.handle.GetPodInPreBind(victim.UID)
	switch {
	case waiting != nil && waiting.Preempt(Name, reason), binding != nil && binding.CancelPod(reason):
		// It is not bound yet, and goes back to the queue.
	default:
		if err := p.deletePod(ctx, preemptor, kind, victim); err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
	}
	p.handle.EventRecorder().WithLogger(logr.FromContextOrDiscard(ctx)).Eventf(
		victim, preemptor, corev1.EventTypeNormal, wellknown.EventPreempted, "Preempting",
		"Preempted by %s %v on node %v", kind, preemptor.UID, victim.Spec.NodeName)
	return nil
}

// deletePod deletes a pod, after it has written the condition by which a Job's podFailurePolicy
// recognizes preemption. It ignores a pod that is gone or was replaced.
func (p *Plugin) deletePod(ctx context.Context, preemptor *corev1.Pod, kind string, victim *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason:  corev1.PodReasonPreemptionByScheduler,
			Message: fmt.Sprintf("%s: preempting to accommodate a %s of a higher priority", preemptor.Spec.SchedulerName, kind),
		}}},
	})
	if err != nil {
		return fmt.Errorf("write condition: %w", err)
	}
	pods := p.handle.ClientSet().CoreV1().Pods(victim.Namespace)
	_, err = pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil || apierrors.IsConflict(err) {
		only := metav1.NewUIDPreconditions(string(victim.UID))
		err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: only})
		if apierrors.IsConflict(err) {
			return nil
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// PodGroupPostFilter evicts the pods that must leave for a native PodGroup's plan, after it has
// scheduled the group without them, by all filters. It runs before kube-scheduler's preemption,
// which would evict single pods of gangs of labels.
func (p *Plugin) PodGroupPostFilter(
	ctx context.Context, state framework.PodGroupCycleState, group framework.PodGroupInfo,
	schedule framework.PodGroupSchedulingFunc,
) (*framework.PodGroupPostFilterResult, *framework.Status) {
	data, _ := state.Read(podGroupKey)
	c, _ := data.(*podGroupCycle)
	if c == nil || len(c.leaving) == 0 {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	if policy := group.GetPodGroup().Spec.PreemptionPolicy; policy != nil && *policy == schedulingv1beta1.PreemptNever {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, "preemptionPolicy is Never")
	}
	result, status := p.scheduleWithout(ctx, c.leaving, schedule)
	if status.IsSuccess() && !p.evict(ctx, group.GetUnscheduledPods()[0], "podgroup of pod", c.leaving) {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable)
	}
	return result, status
}

// scheduleWithout schedules a PodGroup without some pods, and restores the snapshot.
func (p *Plugin) scheduleWithout(
	ctx context.Context, gone []*corev1.Pod, schedule framework.PodGroupSchedulingFunc,
) (result *framework.PodGroupPostFilterResult, status *framework.Status) {
	snapshot := p.handle.MutableSnapshotSharedLister()
	if err := snapshot.StartMutations(); err != nil {
		return nil, framework.AsStatus(fmt.Errorf("change the snapshot: %w", err))
	}
	defer func() {
		if err := snapshot.EndMutations(); err != nil {
			result, status = nil, framework.AsStatus(fmt.Errorf("restore the snapshot: %w", err))
		}
	}()
	for _, pod := range gone {
		if err := snapshot.RemovePod(logr.FromContextOrDiscard(ctx), pod, pod.Spec.NodeName); err != nil {
			return nil, framework.AsStatus(fmt.Errorf("remove pod %s/%s from the snapshot: %w", pod.Namespace, pod.Name, err))
		}
	}
	got, status := schedule(ctx)
	switch {
	case status.IsRejected():
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable,
			"without the pods that its plan evicts: "+status.Message())
	case !status.IsSuccess():
		return nil, status
	}
	result = &framework.PodGroupPostFilterResult{NominatingInfos: map[types.NamespacedName]*framework.NominatingInfo{}}
	for _, a := range got.ProposedAssignments {
		if node := a.GetNodeName(); node != "" {
			key := types.NamespacedName{Namespace: a.GetPod().Namespace, Name: a.GetPod().Name}
			result.NominatingInfos[key] = nominate(node).NominatingInfo
		}
	}
	return result, nil
}
