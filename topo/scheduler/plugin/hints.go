package plugin

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
)

// EventsToRegister are what may help a pod that this plugin refused. What only
// the plugin knows (a new map, promises that end, the last member that comes, a
// PodGroup object) it tells the queue itself.
func (p *Plugin) EventsToRegister(context.Context) ([]framework.ClusterEventWithHint, error) {
	const node = framework.Add | framework.UpdateNodeAllocatable | framework.UpdateNodeLabel | framework.UpdateNodeTaint |
		framework.UpdateNodeCondition
	const self = framework.UpdatePodLabel | framework.UpdatePodToleration | framework.UpdatePodScaleDown
	const room, come = framework.Delete | framework.UpdatePodScaleDown, framework.Add
	return []framework.ClusterEventWithHint{
		{Event: framework.ClusterEvent{Resource: framework.Node, ActionType: node}, QueueingHintFn: p.afterNode},
		{
			Event:          framework.ClusterEvent{Resource: framework.Node, ActionType: framework.UpdateNodeAnnotation},
			QueueingHintFn: p.afterAnnotation,
		},
		{Event: framework.ClusterEvent{Resource: framework.AssignedPod, ActionType: room}, QueueingHintFn: p.afterRoom},
		{Event: framework.ClusterEvent{Resource: framework.TargetPod, ActionType: self}, QueueingHintFn: p.afterItself},
		{Event: framework.ClusterEvent{Resource: framework.UnscheduledPod, ActionType: come}, QueueingHintFn: p.afterSibling},
	}, nil
}

// afterNode is after a node came or changed.
func (p *Plugin) afterNode(_ logr.Logger, pod *corev1.Pod, _, _ any) (framework.QueueingHint, error) {
	return p.worth(pod), nil
}

// afterAnnotation is after a node's annotations changed: only pods with shares,
// or that name GPUs, look at what it publishes.
func (p *Plugin) afterAnnotation(_ logr.Logger, pod *corev1.Pod, older, newer any) (framework.QueueingHint, error) {
	was, ok := older.(*corev1.Node)
	now, too := newer.(*corev1.Node)
	if !ok || !too || !p.particular(pod) {
		return framework.QueueSkip, nil
	}
	for _, key := range []string{wellknown.SGPUCards, wellknown.FreeGPUs} {
		if was.Annotations[key] != now.Annotations[key] {
			return p.worth(pod), nil
		}
	}
	return framework.QueueSkip, nil
}

// afterRoom is after another pod left room.
func (p *Plugin) afterRoom(_ logr.Logger, pod *corev1.Pod, _, _ any) (framework.QueueingHint, error) {
	return p.worth(pod), nil
}

// afterItself is after the pod changed.
func (*Plugin) afterItself(logr.Logger, *corev1.Pod, any, any) (framework.QueueingHint, error) {
	return framework.Queue, nil
}

// afterSibling is after another pod came, which may complete the gang.
func (p *Plugin) afterSibling(_ logr.Logger, pod *corev1.Pod, _, newer any) (framework.QueueingHint, error) {
	other, ok := newer.(*corev1.Pod)
	if !ok || other.Namespace != pod.Namespace || !gang.Mentions(other) || !gang.Mentions(pod) {
		return framework.QueueSkip, nil
	}
	one, err := gang.Read(pod, p.book.domains)
	if err != nil {
		return framework.QueueSkip, nil //nolint:nilerr // Another pod does not mend this one's fault.
	}
	if two, _ := gang.Read(other, p.book.domains); one.Key != two.Key {
		return framework.QueueSkip, nil
	}
	return p.worth(pod), nil
}

// worth tells whether a try of this pod could have another outcome: of a
// refused gang only the leader's.
func (p *Plugin) worth(pod *corev1.Pod) framework.QueueingHint {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[pod.UID]
	if e != nil && e.refusal != "" && e.leader != pod.UID && e.members[pod.UID].stage == pending && b.waits(e.leader) {
		return framework.QueueSkip
	}
	return framework.Queue
}
