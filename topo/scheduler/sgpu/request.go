package sgpu

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Request is what a pod asks for of shared GPUs.
type Request struct {
	// containers choose GPUs in this order, as the node allocates: those that run
	// until the pod ends, then the init containers.
	containers []container
	// node is which nodes are preferred; empty is as configured.
	node config.Placement
	// key is equal for pods that request the same, and zero without annotations.
	key key
}

type key [sha256.Size]byte

type container struct {
	name    string
	phase   quota.Phase
	request quota.Request
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
	return &r, nil
}

// readPlacement takes binpack and spread from the pod's annotations, which count
// only where the GPUs are chosen.
func (r *Request) readPlacement(annotations map[string]string) error {
	gpu, node, err := quota.Placements(annotations)
	if err != nil {
		return err
	}
	r.node = node
	for i := range r.containers {
		r.containers[i].request.Placement = gpu
	}
	r.key = sha256.Sum256(fmt.Appendf(nil, "%#v", r.containers))
	return nil
}

// nodePlacement is which nodes are preferred.
func (r *Request) nodePlacement(configured config.Placement) config.Placement {
	return cmp.Or(r.node, configured)
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

// place chooses the GPUs of one container, beside what the pod's other containers
// claim. GPUs that these use in another phase come first, since they cost no
// other pod anything. chosen is nil if there are none; free is what the container
// can choose from.
func (c *container) place(
	gpus []quota.GPU, claims [][]quota.Claim, how config.Placement,
) (chosen []int, free []quota.GPU) {
	free = gpus
	if slices.ContainsFunc(claims, func(of []quota.Claim) bool { return len(of) > 0 }) {
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
	}
	if chosen, ok := quota.Place(free, &c.request, how, nil); ok {
		return chosen, free
	}
	return nil, free
}

// charge adds a pod's claims to what is taken of a GPU: the peak over all phases,
// or what is claimed during one.
func charge(gpu *quota.GPU, claims []quota.Claim, during *quota.Phase) {
	for i := range claims {
		c := &claims[i]
		if during == nil || c.Phase.Overlaps(*during) {
			c.Mark(gpu)
		}
	}
	gpu.Charge(quota.Peak(claims, during))
}
