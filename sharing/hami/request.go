package hami

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Annotations returns the annotations by which a pod was scheduled. HAMi 2.7 and later know one
// spelling of the QoS policy, [wellknown.SGPUQoSPolicyAlias]; their webhook adds it to a pod that
// has the other, and the scheduler uses it. In a pod that HAMi scheduled the other does not
// contradict it. Without HAMi they are the pod's.
func Annotations(pod *corev1.Pod, d wellknown.Domains) map[string]string {
	_, chosen := pod.Annotations[wellknown.HAMiAllocation]
	_, policy := pod.Annotations[wellknown.SGPUQoSPolicyAlias]
	key := d.SGPUQoSPolicy()
	if !chosen || !policy || pod.Spec.SchedulerName != SchedulerName || key == wellknown.SGPUQoSPolicyAlias {
		return pod.Annotations
	}
	all := maps.Clone(pod.Annotations)
	delete(all, key)
	return all
}
