package fit

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// EndOf returns when a pod that began at a time ends at the latest, by
// activeDeadlineSeconds, which the kubelet enforces, or by the annotation for its
// expected duration; zero if it states neither.
func EndOf(pod *corev1.Pod, began time.Time) time.Time {
	stated, err := time.ParseDuration(pod.Annotations[wellknown.ExpectedDuration])
	if err != nil || stated < 0 {
		stated = 0
	}
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		if deadline := time.Duration(*seconds) * time.Second; stated == 0 || deadline < stated {
			stated = deadline
		}
	}
	if stated == 0 {
		return time.Time{}
	}
	return began.Add(stated)
}
