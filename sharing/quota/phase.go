package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
)

// Phase describes when a container runs: ordinary init containers one after another,
// each while the sidecars that started before it run; then the sidecars and all
// other containers together. The zero Phase is the phase of the main containers.
type Phase struct {
	// Kind is empty for main containers.
	Kind string `json:"kind,omitempty"`
	// Order counts the pod's init containers, sidecars among them.
	Order int `json:"order,omitempty"`
}

const (
	phaseInit    = "init"
	phaseSidecar = "sidecar"
)

// ContainerOf returns a container of a pod and its phase, or nil.
func ContainerOf(pod *corev1.Pod, name string) (*corev1.Container, Phase) {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c, Phase{}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return c, InitPhase(c, i)
		}
	}
	return nil, Phase{}
}

// InitPhase returns the phase of the init container at a place in its pod's list.
func InitPhase(c *corev1.Container, place int) Phase {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return Phase{phaseSidecar, place}
	}
	return Phase{phaseInit, place}
}

// Terminates reports whether the container ends before the main containers
// start: it is an ordinary init container.
func (p Phase) Terminates() bool { return p.Kind == phaseInit }

// Overlaps reports whether two containers of one pod ever run at the same time.
func (p Phase) Overlaps(other Phase) bool {
	return p.during(Phase{}) && other.during(Phase{}) || p.during(other) || other.during(p)
}

// during reports whether a container runs in the phase of an ordinary init
// container, or else in the main phase.
func (p Phase) during(phase Phase) bool {
	switch {
	case !phase.Terminates():
		return !p.Terminates()
	case p.Kind == phaseSidecar:
		return p.Order < phase.Order
	}
	return p == phase
}

// Claim is the part of one GPU that a container of a pod has.
type Claim struct {
	Phase  Phase
	Share  allocation.Share
	Policy Policy
}

// Load is the sum of claims on one GPU.
type Load struct {
	VCore, Consumers int
	MemoryMiB        int64
}

// Peak returns the largest sum of a pod's claims on one GPU, over all times at which
// a container of phase with runs; over all times if with is nil. The kubelet
// counts a pod's resources and reuses its devices by the same rule.
func Peak(claims []Claim, with *Phase) Load {
	if len(claims) == 0 {
		return Load{}
	}
	phases := []Phase{{}}
	for i := range claims {
		if t := claims[i].Phase; t.Terminates() && !slices.Contains(phases, t) {
			phases = append(phases, t)
		}
	}
	if with != nil && with.Terminates() && !slices.Contains(phases, *with) {
		phases = append(phases, *with)
	}
	var most Load
	for _, phase := range phases {
		if with != nil && !with.during(phase) {
			continue
		}
		var sum Load
		for i := range claims {
			if c := &claims[i]; c.Phase.during(phase) {
				sum = Load{sum.VCore + c.Share.VCore, sum.Consumers + 1, sum.MemoryMiB + c.Share.MemoryMiB}
			}
		}
		most = Load{
			max(most.VCore, sum.VCore), max(most.Consumers, sum.Consumers), max(most.MemoryMiB, sum.MemoryMiB),
		}
	}
	return most
}

// Mark gives a GPU what its consumers have in common: exclusive use, or a
// policy. Two policies on one GPU are a fault already; the first in the alphabet
// wins, so that the result does not depend on the order.
func (c *Claim) Mark(gpu *GPU) {
	switch {
	case c.Share.VCore >= Whole:
		gpu.Exclusive = true
	case gpu.Policy == "" || c.Policy < gpu.Policy:
		gpu.Policy = c.Policy
	}
}

// Charge adds a sum of claims to the GPU.
func (c *GPU) Charge(l Load) {
	c.VCore, c.UsedMiB, c.Consumers = c.VCore+l.VCore, c.UsedMiB+l.MemoryMiB, c.Consumers+l.Consumers
}
