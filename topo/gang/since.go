package gang

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// since is when a pod came to its stage, or into trouble, by what its status
// says.
func since(pod *corev1.Pod, at stage, inTrouble bool) second {
	switch {
	case at == succeeded, at == failed:
		return ended(pod)
	case pod.DeletionTimestamp != nil:
		return seconds(*pod.DeletionTimestamp)
	case inTrouble:
		// It has not been ready since then.
		return changed(pod, corev1.PodReady)
	case at == waiting:
		return seconds(pod.CreationTimestamp)
	case at == bound:
		return changed(pod, corev1.PodScheduled)
	}
	return started(pod)
}

// ended is when the last container did.
func ended(pod *corev1.Pod) second {
	last := second(0)
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil {
			last = max(last, seconds(t.FinishedAt))
		}
	}
	if last == 0 {
		return changed(pod, corev1.PodReady)
	}
	return last
}

// started is when the first of the containers that run did.
func started(pod *corev1.Pod) second {
	first := second(0)
	for i := range pod.Status.ContainerStatuses {
		if r := pod.Status.ContainerStatuses[i].State.Running; r != nil {
			if at := seconds(r.StartedAt); first == 0 || at < first {
				first = at
			}
		}
	}
	if first == 0 && pod.Status.StartTime != nil {
		return seconds(*pod.Status.StartTime)
	}
	return first
}

func changed(pod *corev1.Pod, kind corev1.PodConditionType) second {
	if c := condition(pod, kind); c != nil {
		return seconds(c.LastTransitionTime)
	}
	return 0
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

func seconds(at metav1.Time) second {
	if at.IsZero() {
		return 0
	}
	return second(max(0, min(at.Unix(), math.MaxUint32))) //nolint:gosec // It is within its bounds.
}
