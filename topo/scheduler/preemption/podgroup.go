package preemption

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// PodGroup has the pods evicted that a native PodGroup's plan needs gone. The group is
// scheduled once more without these pods, by every filter, before any is evicted.
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

// scheduleWithout schedules a PodGroup in a snapshot without some pods, and restores that.
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
