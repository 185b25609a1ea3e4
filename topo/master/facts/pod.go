package facts

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// Pod is a pod that holds GPUs on a node.
type Pod struct {
	Node string
	GPUs int32
}

// podsOnNodes selects pods that are bound and have not ended; the API server
// sends a pod that ends as deleted.
func podsOnNodes() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)
}

type podReader struct {
	gpu   corev1.ResourceName
	words words
}

// read keeps nothing of a pod without GPUs.
func (r *podReader) read(obj any) (*Pod, bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, false
	}
	if n := r.gpus(&pod.Spec); n > 0 && pod.Spec.NodeName != "" {
		return &Pod{Node: r.words.one(pod.Spec.NodeName), GPUs: n}, true
	}
	return nil, true
}

// gpus is what the kubelet holds for a pod: the containers and the sidecars,
// or more while an init container runs that asks for more. Requests of
// extended resources are their limits.
func (r *podReader) gpus(spec *corev1.PodSpec) int32 {
	var sum, most int64
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sum += r.limit(c)
			most = max(most, sum)
		} else {
			most = max(most, sum+r.limit(c))
		}
	}
	for i := range spec.Containers {
		sum += r.limit(&spec.Containers[i])
	}
	return count(max(sum, most))
}

func (r *podReader) limit(c *corev1.Container) int64 {
	q := c.Resources.Limits[r.gpu]
	return min(max(q.Value(), 0), maxCount)
}
