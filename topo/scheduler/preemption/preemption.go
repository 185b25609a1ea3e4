// Package preemption evicts pods of a lower priority to make room for gangs, for native PodGroups,
// and for pods of no gang. A gang is evicted whole or not at all.
//
// planner decides which pods must leave. This package tries the scheduler's filters without
// them, and evicts them. It keeps no state between cycles: the gang cache has what is
// to be evicted for a gang, and whether the eviction has begun.
package preemption

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Options of a Preemptor.
type Options struct {
	// Plugin is the name of the scheduler's plugin, for rejections.
	Plugin  string
	Handle  framework.Handle
	Cache   *gangcache.Cache
	Planner *planner.Planner
	Log     *slog.Logger
}

// Preemptor evicts pods. It is for one goroutine: that of the scheduling cycles.
type Preemptor struct {
	Options
	budgets policylisters.PodDisruptionBudgetLister
}

// New returns a preemptor, and starts to watch the disruption budgets.
func New(o Options) *Preemptor {
	return &Preemptor{Options: o, budgets: o.Handle.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister()}
}

// searchFor bounds the time of a search for victims. Other bounds end it long before, unless the
// machine is overloaded.
const searchFor = 5 * time.Second

// Plan plans gangs with pods of a lower priority gone, if all of their members may preempt.
func (p *Preemptor) Plan(ctx context.Context, r *planner.Request) planner.Plan {
	if !r.MayPreempt() {
		return planner.Plan{}
	}
	ctx, done := p.search(ctx)
	defer done()
	return p.Planner.Preempt(ctx, r, p.cluster())
}

// search returns the context of a search for victims. done adds its time to the metric.
func (p *Preemptor) search(ctx context.Context) (within context.Context, done func()) {
	begin := time.Now()
	within, cancel := context.WithTimeout(ctx, searchFor)
	return within, func() {
		cancel()
		p.Cache.Metrics.Plans.WithLabelValues("preempting").Observe(time.Since(begin).Seconds())
	}
}

func (p *Preemptor) cluster() *planner.Cluster {
	budgets, _ := p.budgets.List(labels.Everything()) // A list from memory has no errors.
	return &planner.Cluster{GangOf: p.Cache.GangOf(), Budgets: budgets}
}

// LeavesRoom reports whether a member's plan expects pods to leave, and no filter rejects the
// member on its node once they have left.
func (p *Preemptor) LeavesRoom(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) bool {
	leaving := p.Cache.Leaving(pod)
	if len(leaving) == 0 {
		return false
	}
	gone := make(map[types.UID]bool, len(leaving))
	for _, l := range leaving {
		gone[l.UID] = true
	}
	return p.fitsWithout(ctx, state, pod, node, gone)
}

// fitsWithout reports whether some pods are on a node, and no filter rejects another pod there
// once they have left.
func (p *Preemptor) fitsWithout(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string, gone map[types.UID]bool,
) bool {
	info, err := p.Handle.SnapshotSharedLister().NodeInfos().Get(node)
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
		if !p.Handle.RunPreFilterExtensionRemovePod(ctx, trial, pod, on, without).IsSuccess() {
			return false
		}
	}
	return some && p.Handle.RunFilterPluginsWithNominatedPods(ctx, trial, pod, without).IsSuccess()
}

// Evict evicts the pods that must leave for a member's gang, once for all members, and
// reports whether the eviction has begun.
func (p *Preemptor) Evict(ctx context.Context, preemptor *corev1.Pod) bool {
	victims, begun := p.Cache.Preempt(preemptor)
	if len(victims) == 0 {
		return begun
	}
	if !p.evict(ctx, preemptor, "podgroup of pod", victims) {
		p.Cache.NotEvicted(preemptor)
		return false
	}
	return true
}

// Nominate nominates a pod for a node, or for none.
func Nominate(node string) *framework.PostFilterResult {
	return &framework.PostFilterResult{NominatingInfo: &framework.NominatingInfo{
		NominatedNodeName: node, NominatingMode: framework.ModeOverride,
	}}
}

// parallelEvictions is how many pods are evicted at once.
const parallelEvictions = 16

// evict evicts the pods that make room for the preemptor; kind names it in Events.
func (p *Preemptor) evict(ctx context.Context, preemptor *corev1.Pod, kind string, victims []*corev1.Pod) bool {
	var all errgroup.Group
	all.SetLimit(parallelEvictions)
	for _, victim := range victims {
		if victim.DeletionTimestamp == nil {
			all.Go(func() error { return p.evictPod(ctx, preemptor, kind, victim) })
		}
	}
	log := p.Log.With("pod", preemptor.Namespace+"/"+preemptor.Name, "preemptor", kind)
	if err := all.Wait(); err != nil {
		log.ErrorContext(ctx, "preemption failed, will retry", "err", err)
		return false
	}
	log.InfoContext(ctx, "preempted pods of a lower priority", "victims", len(victims))
	return true
}

// evictPod does what kube-scheduler's preemption does to a victim.
func (p *Preemptor) evictPod(ctx context.Context, preemptor *corev1.Pod, kind string, victim *corev1.Pod) error {
	const reason = "preempted"
	waiting, binding := p.Handle.GetWaitingPod(victim.UID), p.Handle.GetPodInPreBind(victim.UID)
	switch {
	case waiting != nil && waiting.Preempt(p.Plugin, reason), binding != nil && binding.CancelPod(reason):
		// It is not bound yet, and goes back to the queue.
	default:
		if err := p.deletePod(ctx, preemptor, kind, victim); err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
	}
	p.Handle.EventRecorder().WithLogger(logr.FromContextOrDiscard(ctx)).Eventf(
		victim, preemptor, corev1.EventTypeNormal, wellknown.EventPreempted, "Preempting",
		"Preempted by %s %v on node %v", kind, preemptor.UID, victim.Spec.NodeName)
	return nil
}

// deletePod deletes a pod, after it has written the condition by which a Job's podFailurePolicy
// recognizes preemption. It ignores a pod that is gone or was replaced.
func (p *Preemptor) deletePod(ctx context.Context, preemptor *corev1.Pod, kind string, victim *corev1.Pod) error {
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
	pods := p.Handle.ClientSet().CoreV1().Pods(victim.Namespace)
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

// PodGroup evicts the pods that must leave for a native PodGroup's plan, after it has scheduled
// the group without them, by all filters.
func (p *Preemptor) PodGroup(
	ctx context.Context, group framework.PodGroupInfo, leaving []*corev1.Pod, schedule framework.PodGroupSchedulingFunc,
) (*framework.PodGroupPostFilterResult, *framework.Status) {
	if policy := group.GetPodGroup().Spec.PreemptionPolicy; policy != nil && *policy == schedulingv1beta1.PreemptNever {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, "preemptionPolicy is Never")
	}
	result, status := p.scheduleWithout(ctx, leaving, schedule)
	if status.IsSuccess() && !p.evict(ctx, group.GetUnscheduledPods()[0], "podgroup of pod", leaving) {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable)
	}
	return result, status
}

// scheduleWithout schedules a PodGroup without some pods, and restores the snapshot.
func (p *Preemptor) scheduleWithout(
	ctx context.Context, gone []*corev1.Pod, schedule framework.PodGroupSchedulingFunc,
) (result *framework.PodGroupPostFilterResult, status *framework.Status) {
	snapshot := p.Handle.MutableSnapshotSharedLister()
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
			result.NominatingInfos[key] = Nominate(node).NominatingInfo
		}
	}
	return result, nil
}
