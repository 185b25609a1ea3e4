package plugin

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// EventsToRegister are what may help a pod that this plugin rejected. What only heddle
// knows (another topology tree, reservations that end, the last member of a gang, a
// PodGroup object) the controller activates.
func (p *Plugin) EventsToRegister(context.Context) ([]framework.ClusterEventWithHint, error) {
	event := func(
		resource framework.EventResource, action framework.ActionType, hint framework.QueueingHintFn,
	) framework.ClusterEventWithHint {
		return framework.ClusterEventWithHint{
			Event: framework.ClusterEvent{Resource: resource, ActionType: action}, QueueingHintFn: hint,
		}
	}
	const node = framework.Add | framework.UpdateNodeAllocatable | framework.UpdateNodeLabel | framework.UpdateNodeTaint |
		framework.UpdateNodeCondition
	const self = framework.UpdatePodLabel | framework.UpdatePodToleration | framework.UpdatePodScaleDown
	const freed = framework.Delete | framework.UpdatePodScaleDown
	return []framework.ClusterEventWithHint{
		event(framework.Node, node, p.afterChange),
		event(framework.Node, framework.UpdateNodeAnnotation, p.afterAnnotation),
		event(framework.AssignedPod, freed, p.afterChange),
		event(framework.TargetPod, self, nil), // Without a hint it is always queued.
		event(framework.UnscheduledPod, framework.Add, p.afterSibling),
	}, nil
}

// afterChange is after a node came or changed, or a pod left one.
func (p *Plugin) afterChange(_ logr.Logger, pod *corev1.Pod, _, _ any) (framework.QueueingHint, error) {
	if p.cache.WorthTrying(pod) {
		return framework.Queue, nil
	}
	return framework.QueueSkip, nil
}

// afterAnnotation is after a node's annotations changed, which matter to pods with
// shares or selectors of GPUs.
func (p *Plugin) afterAnnotation(log logr.Logger, pod *corev1.Pod, older, newer any) (framework.QueueingHint, error) {
	before, ok := older.(*corev1.Node)
	now, too := newer.(*corev1.Node)
	if !ok || !too || !p.gpus.Concerns(pod) {
		return framework.QueueSkip, nil
	}
	for _, key := range []string{wellknown.SharedGPUs, wellknown.FreeGPUs} {
		if before.Annotations[key] != now.Annotations[key] {
			return p.afterChange(log, pod, older, newer)
		}
	}
	return framework.QueueSkip, nil
}

// afterSibling is after another pod came, which may complete the gang.
func (p *Plugin) afterSibling(log logr.Logger, pod *corev1.Pod, older, newer any) (framework.QueueingHint, error) {
	if other, ok := newer.(*corev1.Pod); ok && p.cache.SameGang(pod, other) {
		return p.afterChange(log, pod, older, newer)
	}
	return framework.QueueSkip, nil
}
