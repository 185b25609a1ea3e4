package informers

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// Pod holds the used part of a pod that requests GPUs or is in a gang. It is immutable.
type Pod struct {
	namespace, name string
	// Node and GPUs describe what the pod holds; a pod that ended holds nothing.
	Node string
	GPUs int32
	// Member is nil if the pod is in no gang.
	Member *gang.Member
	uid    types.UID
}

// GetObjectMeta is for client-go's keys.
func (p *Pod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace, Name: p.name}
}

func (p *Pod) keep(old *Pod) *Pod {
	if p.uid == old.uid && p.Node == old.Node && p.GPUs == old.GPUs && (p.Member == nil) == (old.Member == nil) &&
		(p.Member == nil || *p.Member == *old.Member) {
		return old
	}
	return p
}

// byGang is the index of pods by gang.
const byGang = "gang"

func gangOf(obj any) ([]string, error) {
	if pod, ok := obj.(*Pod); ok && pod.Member != nil {
		return []string{pod.Member.Key()}, nil
	}
	return nil, nil
}

// podReader selects what to keep of pods.
type podReader struct {
	resources gpuResources
	suspects  *suspect.Memory
}

// wants drops the pods that most nodes have most of. A pod's requests of GPUs
// never change; one that leaves its gang stays stored until it is deleted.
func (r *podReader) wants(pod *corev1.Pod) bool { return r.gpus(&pod.Spec) > 0 || gang.Concerns(pod) }

func (r *podReader) read(pod *corev1.Pod) *Pod {
	out := &Pod{namespace: pod.Namespace, name: pod.Name}
	requested := r.gpus(&pod.Spec)
	if requested > 0 && pod.Spec.NodeName != "" && !ended(pod) {
		out.Node, out.GPUs = pod.Spec.NodeName, requested
	}
	if out.Member, _ = gang.MemberOf(pod, requested); out.Member != nil {
		out.uid = pod.UID
		r.suspects.See(suspect.PodOf(pod, out.Member.Gang))
	}
	return out
}

// ended reports whether a pod holds nothing any more.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// gpus returns the number of GPUs that the kubelet holds for a pod: the sum of containers and
// sidecars, or more while an init container with a larger request runs. Requests of extended
// resources equal their limits.
func (r *podReader) gpus(spec *corev1.PodSpec) int32 {
	var sum, most int64
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sum += r.resources.count(c.Resources.Limits)
			most = max(most, sum)
		} else {
			most = max(most, sum+r.resources.count(c.Resources.Limits))
		}
	}
	for i := range spec.Containers {
		sum += r.resources.count(spec.Containers[i].Resources.Limits)
	}
	return bounded(max(sum, most))
}
