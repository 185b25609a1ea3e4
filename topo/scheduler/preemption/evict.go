package preemption

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// parallelEvictions is how many pods are evicted at once.
const parallelEvictions = 16

// evict evicts pods for a preemptor, of which what names the kind.
func (p *Preemptor) evict(ctx context.Context, preemptor *corev1.Pod, what string, victims []*corev1.Pod) bool {
	var all errgroup.Group
	all.SetLimit(parallelEvictions)
	for _, victim := range victims {
		if victim.DeletionTimestamp == nil {
			all.Go(func() error { return p.evictPod(ctx, preemptor, what, victim) })
		}
	}
	log := p.Log.With("pod", preemptor.Namespace+"/"+preemptor.Name, "preemptor", what)
	if err := all.Wait(); err != nil {
		log.ErrorContext(ctx, "preemption failed, tried again", "err", err)
		return false
	}
	log.InfoContext(ctx, "preempted pods of a lower priority", "victims", len(victims))
	return true
}

// evictPod does what kube-scheduler's preemption does to a victim.
func (p *Preemptor) evictPod(ctx context.Context, preemptor *corev1.Pod, what string, victim *corev1.Pod) error {
	const reason = "preempted"
	waiting, binding := p.Handle.GetWaitingPod(victim.UID), p.Handle.GetPodInPreBind(victim.UID)
	switch {
	case waiting != nil && waiting.Preempt(p.Plugin, reason), binding != nil && binding.CancelPod(reason):
		// It has no node in the API yet, and goes back to the queue.
	default:
		if err := p.deletePod(ctx, preemptor, what, victim); err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
	}
	p.Handle.EventRecorder().WithLogger(logr.FromContextOrDiscard(ctx)).Eventf(
		victim, preemptor, corev1.EventTypeNormal, wellknown.EventPreempted, "Preempting",
		"Preempted by %s %v on node %v", what, preemptor.UID, victim.Spec.NodeName)
	return nil
}

// deletePod has the condition written first, by which a Job's podFailurePolicy knows a
// preempted pod. A pod that is gone, or another of its name, is none.
func (p *Preemptor) deletePod(ctx context.Context, preemptor *corev1.Pod, what string, victim *corev1.Pod) error {
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
