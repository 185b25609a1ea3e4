package informers

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/gang"
)

// Pod is a pod that holds GPUs on a node, or is in a gang, or both. It never
// changes.
type Pod struct {
	// Node and GPUs are what it holds; a pod that ended holds nothing.
	Node string
	GPUs int32
	// Member is nil if the pod is in no gang.
	Member *gang.Member
}

// Same tells whether nothing that is used changed.
func (p *Pod) Same(o *Pod) bool {
	return p.Node == o.Node && p.GPUs == o.GPUs && (p.Member == nil) == (o.Member == nil) &&
		(p.Member == nil || *p.Member == *o.Member)
}

// podReader says what to keep of a pod.
type podReader struct {
	gpu   corev1.ResourceName
	words words
	// refusals are what schedulers said, of which there is more every day.
	refusals words
}

// maxRefusals bounds the memory for them.
const maxRefusals = 1 << 10

func newPodReader(gpu corev1.ResourceName) *podReader {
	return &podReader{gpu: gpu, words: words{}, refusals: words{}}
}

// read keeps nothing of a pod that has no GPUs and is in no gang.
func (r *podReader) read(obj any) (*Pod, bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, false
	}
	out := &Pod{}
	asks := r.gpus(&pod.Spec)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if asks > 0 && pod.Spec.NodeName != "" && !ended {
		out.Node, out.GPUs = r.words.one(pod.Spec.NodeName), asks
	}
	if m, ok := gang.MemberOf(pod); ok {
		m.GPUs = asks
		if len(r.refusals) >= maxRefusals {
			clear(r.refusals)
		}
		m.Intern(r.words.one, r.refusals.one)
		out.Member = m
	}
	if out.GPUs == 0 && out.Member == nil {
		return nil, true
	}
	return out, true
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
