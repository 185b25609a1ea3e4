package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// parallelEvictions is how many pods are evicted at once.
const parallelEvictions = 16

// preempt plans gangs with pods of a lower priority gone, if all of their members may.
func (p *Plugin) preempt(r *planner.Request) (plans []planner.Plan, leaving []*corev1.Pod) {
	if !r.MayPreempt() {
		return nil, nil
	}
	begin := time.Now()
	defer func() {
		p.cache.Metrics.Plans.WithLabelValues("preempting").Observe(time.Since(begin).Seconds())
	}()
	return p.planner.Preempt(r, p.cluster())
}

// cluster is what preemption must know beside the nodes.
func (p *Plugin) cluster() *planner.Cluster {
	budgets, _ := p.budgets.List(labels.Everything()) // What is in memory has no errors.
	return &planner.Cluster{GangOf: p.cache.GangOf(), Budgets: budgets}
}

// leavesRoom reports whether a member's node takes it once the pods have left that its plan
// expects to: there are some, and no filter rejects it then.
func (p *Plugin) leavesRoom(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) bool {
	leaving := p.cache.Leaving(pod)
	if len(leaving) == 0 {
		return false
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return false
	}
	gone := make(map[types.UID]bool, len(leaving))
	for _, l := range leaving {
		gone[l.UID] = true
	}
	return p.fitsWithout(ctx, state, pod, info, gone)
}

// fitsWithout reports whether no filter rejects a pod on a node once others have left it;
// some of these must be on the node.
func (p *Plugin) fitsWithout(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, info framework.NodeInfo, gone map[types.UID]bool,
) bool {
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

// evict evicts the pods that must leave for a member's gang, once for all members. It
// reports whether that has begun: each has its node as soon as they are gone.
func (p *Plugin) evict(ctx context.Context, preemptor *corev1.Pod) bool {
	victims, begun := p.cache.Preempt(preemptor)
	if len(victims) == 0 {
		return begun
	}
	if !p.evictAll(ctx, preemptor, "podgroup of pod", victims) {
		p.cache.NotEvicted(preemptor)
		return false
	}
	return true
}

// evictAll evicts pods for a preemptor, of which what names the kind.
func (p *Plugin) evictAll(ctx context.Context, preemptor *corev1.Pod, what string, victims []*corev1.Pod) bool {
	var all errgroup.Group
	all.SetLimit(parallelEvictions)
	for _, victim := range victims {
		if victim.DeletionTimestamp == nil {
			all.Go(func() error { return p.evictPod(ctx, preemptor, what, victim) })
		}
	}
	log := p.log.With("pod", preemptor.Namespace+"/"+preemptor.Name, "preemptor", what)
	if err := all.Wait(); err != nil {
		log.ErrorContext(ctx, "preemption failed, tried again", "err", err)
		return false
	}
	log.InfoContext(ctx, "preempted pods of a lower priority", "victims", len(victims))
	return true
}

// evictPod does what kube-scheduler's preemption does to a victim.
func (p *Plugin) evictPod(ctx context.Context, preemptor *corev1.Pod, what string, victim *corev1.Pod) error {
	const reason = "preempted"
	waiting, binding := p.handle.GetWaitingPod(victim.UID), p.handle.GetPodInPreBind(victim.UID)
	switch {
	case waiting != nil && waiting.Preempt(Name, reason), binding != nil && binding.CancelPod(reason):
		// It has no node in the API yet, and goes back to the queue.
	default:
		if err := p.deletePod(ctx, preemptor, what, victim); err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
	}
	p.handle.EventRecorder().WithLogger(logr.FromContextOrDiscard(ctx)).Eventf(
		victim, preemptor, corev1.EventTypeNormal, wellknown.EventPreempted, "Preempting",
		"Preempted by %s %v on node %v", what, preemptor.UID, victim.Spec.NodeName)
	return nil
}

// deletePod has the condition written first, by which a Job's podFailurePolicy knows a
// preempted pod. A pod that is gone, or another of its name, is none.
func (p *Plugin) deletePod(ctx context.Context, preemptor *corev1.Pod, what string, victim *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason:  corev1.PodReasonPreemptionByScheduler,
			Message: fmt.Sprintf("%s: preempting to accommodate a %s of a higher priority", preemptor.Spec.SchedulerName, what),
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

// nominated nominates a pod for a node, or for none.
func nominated(node string) *framework.PostFilterResult {
	return &framework.PostFilterResult{NominatingInfo: &framework.NominatingInfo{
		NominatedNodeName: node, NominatingMode: framework.ModeOverride,
	}}
}
