package plugin

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// PodGroupPostFilter has whole gangs evicted for a native PodGroup: those of its plan. It
// runs before kube-scheduler's preemption, to which gangs of labels are single pods. The group
// is scheduled once more without these pods, by every filter, before any is evicted.
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
	if status.IsSuccess() && !p.evictAll(ctx, group.GetUnscheduledPods()[0], "podgroup of pod", c.leaving) {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable)
	}
	return result, status
}

// scheduleWithout schedules a PodGroup in a snapshot without some pods, and restores that.
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
			result.NominatingInfos[key] = nominated(node).NominatingInfo
		}
	}
	return result, nil
}
