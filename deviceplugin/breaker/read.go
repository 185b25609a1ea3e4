package breaker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod describes what a pod with heddle's devices shows about its node.
type Pod struct {
	Name string
	UID  types.UID
	// Failed explains why it did not start for its devices; empty otherwise. Rejected is true if the kubelet
	// did not admit it.
	Failed   string
	Rejected bool
	// Waits is true while none of its containers with devices has started or failed for them.
	Waits bool
	// Admitted is when the kubelet took the pod, and Started when a container with devices last started; zero
	// if that is not so.
	Admitted, Started time.Time
}

// Read returns what a pod shows. resources are heddle's, and claimed is whether the pod has devices by claims of
// heddle. has is false for a pod that has neither.
//
// No evidence are TopologyAffinityError and other reasons of the kubelet's admission, images, commands, cgroups and
// volumes; nor PreStartContainer's errors (CreateContainerConfigError), which the device plugin makes itself; nor a
// resource without healthy devices, which schedulers see on the Node.
func Read(p *corev1.Pod, resources []string, claimed bool) (seen Pod, has bool) {
	with := map[string]bool{}
	own, foreign := 0, 0
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		before := own
		for name := range c.Resources.Limits {
			if slices.Contains(resources, string(name)) {
				own++
			} else if strings.Contains(string(name), "/") {
				foreign++
			}
		}
		with[c.Name] = own > before || claimed && len(c.Resources.Claims) > 0
		has = has || with[c.Name]
	}
	seen = Pod{Name: p.Namespace + "/" + p.Name, UID: p.UID}
	if p.Status.StartTime != nil {
		seen.Admitted = p.Status.StartTime.Time
	}
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnexpectedAdmissionError" {
		seen.Failed = ofDevices(p.Status.Message, resources, own > 0 && foreign == 0)
		seen.Rejected = seen.Failed != ""
		return seen, has
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if with[s.Name] {
			seen.container(&s)
		}
	}
	ended := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	seen.Waits = !ended && seen.Failed == "" && seen.Started.IsZero()
	return seen, has
}

// ofDevices returns a message of the kubelet that is about heddle's devices, else nothing: it names one of the
// resources, or is the error of a device plugin's call, which names none, and the pod has devices of heddle alone.
func ofDevices(message string, resources []string, alone bool) string {
	named := func(name string) bool { return strings.Contains(message, name) }
	none := named("no healthy devices present") || named("unregistered device")
	if none || !slices.ContainsFunc(resources, named) && (!alone || !named("rpc error")) {
		return ""
	}
	return message
}

// container adds the status of a container with devices.
func (p *Pod) container(s *corev1.ContainerStatus) {
	const startError = "StartError" // The runtime created it and could not start it.
	reason, message, started := "", "", time.Time{}
	if t := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated); t != nil && t.Reason == startError {
		reason, message = t.Reason, t.Message
	} else if t != nil {
		started = t.StartedAt.Time
	}
	if w := s.State.Waiting; w != nil && reason == "" {
		reason, message = w.Reason, w.Message
	}
	if r := s.State.Running; r != nil {
		reason, started = "", r.StartedAt.Time
	}
	if started.After(p.Started) {
		p.Started = started
	}
	ofStart := reason == startError || reason == "CreateContainerError" || reason == "RunContainerError"
	if ofStart && (strings.Contains(message, "CDI") || strings.Contains(message, "hook")) {
		p.Failed = reason + ": " + message
	}
}
