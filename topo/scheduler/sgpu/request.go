package sgpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Request holds a pod's request for shares of GPUs.
type Request struct {
	// containers choose GPUs in this order, as the node allocates: those that run
	// until the pod ends, then the init containers.
	containers []container
	// node selects the preferred nodes; empty means the configured default.
	node config.Placement
	// counted are the pod's vcore and vmemory as a kubelet counts them.
	counted map[corev1.ResourceName]int64
}

type container struct {
	name    string
	phase   quota.Phase
	request quota.Request
}

// Request returns a pod's request for shares, or nil. Its annotations for binpack and spread count
// only where the GPUs are chosen.
func (s *Scheduler) Request(pod *corev1.Pod) (*Request, error) {
	r, err := parseRequest(pod, s.names(pod))
	if errors.Is(err, quota.ErrNoShare) {
		return nil, nil //nolint:nilnil // Most pods request no share.
	}
	if err != nil {
		return nil, err
	}
	gpu, node, err := quota.Placements(pod.Annotations)
	r.node = node
	for i := range r.containers {
		r.containers[i].request.Placement = gpu
	}
	return r, err
}

// parseRequest reads a pod's limits. The error is quota.ErrNoShare for a pod that
// requests no share, or names the container.
func parseRequest(pod *corev1.Pod, c *config.NodeConfig) (*Request, error) {
	var r Request
	add := func(of *corev1.Container, phase quota.Phase) error {
		request, err := quota.ParseRequest(of.Resources.Limits, pod.Annotations, c)
		if errors.Is(err, quota.ErrNoShare) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("container %s: %w", of.Name, err)
		}
		r.containers = append(r.containers, container{of.Name, phase, request})
		return nil
	}
	var faults error
	for i := range pod.Spec.Containers {
		faults = errors.Join(faults, add(&pod.Spec.Containers[i], quota.Phase{}))
	}
	for _, terminates := range []bool{false, true} {
		for i := range pod.Spec.InitContainers {
			of := &pod.Spec.InitContainers[i]
			if phase := quota.InitPhase(of, i); phase.Terminates() == terminates {
				faults = errors.Join(faults, add(of, phase))
			}
		}
	}
	switch {
	case faults != nil:
		return nil, faults
	case len(r.containers) == 0:
		return nil, quota.ErrNoShare
	}
	r.counted = map[corev1.ResourceName]int64{}
	all := resource.PodLimits(pod, resource.PodResourcesOptions{})
	for _, name := range []string{c.Resources.VCore, c.Resources.VMemory} {
		if n := all[corev1.ResourceName(name)]; !n.IsZero() {
			r.counted[corev1.ResourceName(name)] = n.Value()
		}
	}
	return &r, nil
}

// place chooses GPUs for all containers and charges them with what the pod takes:
// the most that any of its phases takes, not the sum. The reason is empty if all
// containers have theirs; else gpus are as they were.
func (r *Request) place(gpus []quota.GPU, how config.Placement) (shares map[string][]allocation.Share, reason string) {
	shares = make(map[string][]allocation.Share, len(r.containers))
	claims := make([][]quota.Claim, len(gpus))
	for i := range r.containers {
		c := &r.containers[i]
		chosen, free := c.place(gpus, claims, how)
		if chosen == nil {
			return nil, quota.Explain(free, &c.request)
		}
		for _, at := range chosen {
			share := gpus[at].Share(&c.request)
			shares[c.name] = append(shares[c.name], share)
			claims[at] = append(claims[at], quota.Claim{Phase: c.phase, Share: share, Policy: c.request.Policy})
		}
	}
	for at := range gpus {
		charge(&gpus[at], claims[at], nil)
	}
	return shares, ""
}

// place chooses the GPUs of one container, beside what the pod's other containers claim. GPUs that
// these use in another phase come first, since they cost no other pod anything. chosen is nil if no
// GPUs fit; free counts the GPUs that the container can choose from.
func (c *container) place(
	gpus []quota.GPU, claims [][]quota.Claim, how config.Placement,
) (chosen []int, free []quota.GPU) {
	free = slices.Clone(gpus)
	var own []quota.GPU
	var at []int
	for i := range free {
		charge(&free[i], claims[i], &c.phase)
		if slices.ContainsFunc(claims[i], func(x quota.Claim) bool { return !x.Phase.Overlaps(c.phase) }) {
			own, at = append(own, free[i]), append(at, i)
		}
	}
	if chosen, ok := quota.Place(own, &c.request, how, nil); ok {
		for i := range chosen {
			chosen[i] = at[chosen[i]]
		}
		return chosen, free
	}
	chosen, _ = quota.Place(free, &c.request, how, nil)
	return chosen, free
}

// charge adds a pod's claims to the amounts taken of a GPU: the peak over all phases, or the claims
// during one.
func charge(gpu *quota.GPU, claims []quota.Claim, during *quota.Phase) {
	for i := range claims {
		c := &claims[i]
		if during == nil || c.Phase.Overlaps(*during) {
			c.Mark(gpu)
		}
	}
	gpu.Charge(quota.Peak(claims, during))
}

// Selector selects the whole GPUs that a pod accepts, by the annotations use-gpuuuid and
// nouse-gpuuuid. A nil Selector accepts any.
type Selector struct {
	// Resource is the resource of whole GPUs.
	Resource corev1.ResourceName
	quota.Selector
	scheduler *Scheduler
}

// Selector reads a pod's annotations; nil if it accepts any GPU. The error is of
// annotations that contradict each other.
func (s *Scheduler) Selector(pod *corev1.Pod) (*Selector, error) {
	c := s.names(pod)
	selector, err := quota.SelectorOf(pod.Annotations, c.Domains)
	if err != nil || selector.None() {
		return nil, err
	}
	return &Selector{corev1.ResourceName(c.Resources.GPU), selector, s}, nil
}

// Concerns reports whether a pod's place depends on its shares or its selector.
func (s *Scheduler) Concerns(pod *corev1.Pod) bool {
	selector, err := s.Selector(pod)
	_, requestErr := parseRequest(pod, s.names(pod))
	return selector != nil || err != nil || !errors.Is(requestErr, quota.ErrNoShare)
}

// String is equal for selectors that accept the same; empty for nil.
func (s *Selector) String() string {
	if s == nil {
		return ""
	}
	return "use " + strings.Join(s.Use, ",") + " nouse " + strings.Join(s.Avoid, ",")
}

// Left returns the number of GPUs on a node that are certainly left for such a pod: the published
// free GPUs that the pod accepts. requested is the number that the node's pods request: each pod
// that came after the node published may have got one of them. Left fails if the node does not
// publish its free GPUs.
func (s *Selector) Left(node *corev1.Node, requested int64) (int64, error) {
	free := s.scheduler.published(node).free
	if free != nil {
		free = free.Of(string(s.Resource))
	}
	if free == nil {
		return 0, errors.New("node does not publish its free GPUs")
	}
	n := min(int64(free.Held)-requested, 0)
	for _, g := range free.Free {
		if s.Accepts(g.UUID, cmp.Or(g.Of, g.UUID)) {
			n++
		}
	}
	return max(n, 0), nil
}
