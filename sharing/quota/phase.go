package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
)

// Phase is when a container runs: ordinary init containers one after another,
// each beside the sidecars that began before it, then the sidecars and all
// other containers together. The zero Phase is that of the others.
type Phase struct {
	// Kind is empty for those that run to the pod's end and are no sidecars.
	Kind string `json:"kind,omitempty"`
	// Order counts the pod's init containers, sidecars among them.
	Order int `json:"order,omitempty"`
}

const (
	phaseInit    = "init"
	phaseSidecar = "sidecar"
)

// ContainerOf finds a container of a pod, and its turn; nil if there is none.
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

// InitPhase is the turn of the init container at a place in its pod's list.
func InitPhase(c *corev1.Container, place int) Phase {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return Phase{phaseSidecar, place}
	}
	return Phase{phaseInit, place}
}

// Terminates tells that the container ends before the pod's others begin: it is an
// ordinary init container.
func (t Phase) Terminates() bool { return t.Kind == phaseInit }

// Overlaps tells whether two containers of one pod ever run at the same time.
func (t Phase) Overlaps(other Phase) bool {
	return t.during(Phase{}) && other.during(Phase{}) || t.during(other) || other.during(t)
}

// during tells whether a container runs in the turn of an ordinary init
// container, or else in the time of those that are none.
func (t Phase) during(phase Phase) bool {
	switch {
	case !phase.Terminates():
		return !t.Terminates()
	case t.Kind == phaseSidecar:
		return t.Order < phase.Order
	}
	return t == phase
}

// Claim is what one container of a pod has of one card.
type Claim struct {
	Phase  Phase
	Share  allocation.Share
	Policy Policy
}

// Load is what claims come to on one card.
type Load struct {
	VCore, Consumers int
	MemoryMiB        int64
}

// Peak is the most that a pod's claims on one card come to at any time at which
// a container of turn with runs; at any time at all without one. It is the rule
// by which the kubelet counts a pod's resources and reuses its devices.
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

// Mark gives a card what its tenants have in common: being alone, or a policy.
// If there are two policies something is wrong already, and the first in the
// alphabet is as good as the other.
func (c *Claim) Mark(card *GPU) {
	switch {
	case c.Share.VCore >= Whole:
		card.Exclusive = true
	case card.Policy == "" || c.Policy < card.Policy:
		card.Policy = c.Policy
	}
}

// Charge adds what claims come to.
func (c *GPU) Charge(l Load) {
	c.VCore, c.UsedMiB, c.Consumers = c.VCore+l.VCore, c.UsedMiB+l.MemoryMiB, c.Consumers+l.Consumers
}
