package gang

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// IsLabeled tells whether a pod says all of its gang itself, in the PodGroup
// spelling: the name in a label, and min-available in a label or an annotation.
// Koordinator's annotations do not count: who writes them has objects of
// Koordinator's own.
func IsLabeled(pod *corev1.Pod) bool {
	name := pod.Labels[wellknown.GangName] + pod.Labels[wellknown.GangNameBare] + pod.Labels[wellknown.GangNameXK8s]
	return name != "" && pod.Labels[wellknown.GangMinAvailable]+pod.Annotations[wellknown.GangMinAvailable] != ""
}
