package sgpu

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// consumer is a pod on a node, and what it claims of each GPU.
type consumer struct {
	claims map[string][]quota.Claim
	// started holds the claims that the node must count too: the claims of started containers,
	// without init containers that may have ended.
	started map[string][]quota.Claim
	// unknown reports that no source that can be believed assigns GPUs to one of
	// its containers.
	unknown bool
	// assumed reports that the pod does not have the decision yet.
	assumed bool
}

// consumer believes what the node bound before what was decided. Both are annotations, which the
// pod's owner may be able to write: they choose the GPUs, but only the limits decide how many and
// how much of each. A pod that requests no share claims none. A pod with a request that is no
// longer valid claims what its node counts.
func (s *Scheduler) consumer(pod *corev1.Pod, node string, listed []allocation.GPU) *consumer {
	request, err := parseRequest(pod, s.names(pod))
	if err != nil {
		return &consumer{unknown: !errors.Is(err, quota.ErrNoShare)}
	}
	bound, decided, annotated := s.read(pod, node)
	out := &consumer{
		claims: map[string][]quota.Claim{}, started: map[string][]quota.Claim{}, assumed: !annotated,
	}
	for i := range request.containers {
		c := &request.containers[i]
		shares, policy, started := decided[c.name], c.request.Policy, isStarted(pod, c.name)
		if b, ok := bound[c.name]; ok && c.requests(b.Shares) {
			shares, policy, started = b.Shares, quota.Policy(b.Policy), true
		} else if ok {
			s.ignore(pod, wellknown.SGPUBound)
		}
		if len(shares) > 0 && !c.requests(shares) {
			s.ignore(pod, wellknown.SGPUAllocation)
			shares = nil
		}
		out.unknown = out.unknown || len(shares) == 0
		for _, share := range shares {
			if at := slices.IndexFunc(listed, func(g allocation.GPU) bool { return g.UUID == share.UUID }); at >= 0 &&
				c.request.MemoryMiB == 0 {
				share.MemoryMiB = c.request.MemoryOf(listed[at].MemoryMiB)
			}
			claim := quota.Claim{Phase: c.phase, Share: share, Policy: policy}
			out.claims[share.UUID] = append(out.claims[share.UUID], claim)
			if started && !c.phase.Terminates() {
				out.started[share.UUID] = append(out.started[share.UUID], claim)
			}
		}
	}
	return out
}

// read returns the GPUs in a pod's annotations for a node, by container. annotated is false for a
// pod without a decision, or with one that is not written yet.
func (s *Scheduler) read(pod *corev1.Pod, node string) (
	bound map[string]allocation.Sharing, decided map[string][]allocation.Share, annotated bool,
) {
	if b, err := allocation.ParseBound(pod.Annotations[wellknown.SGPUBound]); err == nil && b.Node == node {
		bound = b.Containers
	}
	text, annotated := pod.Annotations[wellknown.SGPUAllocation]
	decision := s.Decision(pod.UID)
	if annotated {
		decision, _ = allocation.ParseAllocation(text)
	}
	if decision != nil && decision.Node == node {
		decided = decision.Containers
	}
	return bound, decided, annotated
}

// requests reports whether shares are of as many GPUs, and as large, as the
// container requests. Memory that it does not request is the GPU's whole memory.
func (c *container) requests(shares []allocation.Share) bool {
	r := &c.request
	return len(shares) == r.GPUs && !slices.ContainsFunc(shares, func(s allocation.Share) bool {
		return s.VCore != r.VCore || r.MemoryMiB != 0 && s.MemoryMiB != r.MemoryMiB
	})
}

// isStarted reports whether the kubelet has started a container, which the
// pod's owner cannot hide.
func isStarted(pod *corev1.Pod, name string) bool {
	all := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses)
	return slices.ContainsFunc(all, func(c corev1.ContainerStatus) bool {
		return c.Name == name && c.State.Running != nil
	})
}

// ignore counts an annotation that is not believed.
func (s *Scheduler) ignore(pod *corev1.Pod, key string) {
	s.ignored.WithLabelValues(key).Inc()
	s.log.Warn("annotation ignored: its shares are not those of the pod's limits",
		"annotation", key, "namespace", pod.Namespace, "pod", pod.Name)
}
