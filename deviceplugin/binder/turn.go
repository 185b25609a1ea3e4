package binder

import corev1 "k8s.io/api/core/v1"

// turn is when a container runs: ordinary init containers one after another,
// each beside the sidecars that began before it, then the sidecars and all
// other containers together.
type turn struct {
	// Kind is empty for those that run to the pod's end and are no sidecars.
	Kind string `json:"kind,omitempty"`
	// Order counts the pod's init containers, sidecars among them.
	Order int `json:"order,omitempty"`
}

const (
	turnInit    = "init"
	turnSidecar = "sidecar"
)

// containerOf finds a container of a pod, and its turn; nil if there is none.
func containerOf(pod *corev1.Pod, name string) (*corev1.Container, turn) {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c, turn{}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name != name {
			continue
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return c, turn{turnSidecar, i}
		}
		return c, turn{turnInit, i}
	}
	return nil, turn{}
}

// during tells whether a container runs in the turn of an ordinary init
// container, or else in the time of those that are none.
func (t turn) during(phase turn) bool {
	switch {
	case phase.Kind != turnInit:
		return t.Kind != turnInit
	case t.Kind == turnSidecar:
		return t.Order < phase.Order
	}
	return t == phase
}

// together tells whether two containers of one pod ever run at the same time.
func together(a, b turn) bool {
	return a.during(turn{}) && b.during(turn{}) || a.during(b) || b.during(a)
}
