package gang

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Phase is the state of a gang in one word for people.
type Phase string

// The phases.
const (
	// Queued gangs wait for members or for nodes.
	Queued Phase = "Queued"
	// Starting gangs have nodes; too few members run yet.
	Starting Phase = "Starting"
	Running  Phase = "Running"
	// Unknown gangs need somebody: a member failed, is being deleted, cannot
	// pull its image, crashes again and again, or its node is lost.
	Unknown   Phase = "Unknown"
	Succeeded Phase = "Succeeded"
)

// State is what people are told about a gang.
type State struct {
	Phase Phase
	// Reason says what is missing or wrong; empty for Running and Succeeded.
	Reason string
	// Pods are all that exist; Bound have a node and are not finished.
	Pods, Bound, Running, Succeeded, Failed int
}

// StateOf tells the state of a gang from its pods. minMember 0 is unknown: then
// all pods are needed. lost says of a node whether it is not ready; nil is never.
func StateOf(pods []*corev1.Pod, minMember int, lost func(node string) bool) State {
	s := State{Pods: len(pods)}
	trouble := make(map[string]int)
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			s.Succeeded++
		case pod.Status.Phase == corev1.PodFailed:
			s.Failed++
		case pod.Spec.NodeName != "":
			s.Bound++
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				s.Running++
			}
		}
		if word := wrong(pod, lost); word != "" {
			trouble[word]++
		}
	}
	need := minMember
	if need == 0 {
		need = max(1, len(pods))
	}
	switch {
	case len(trouble) > 0:
		s.Phase, s.Reason = Unknown, worst(trouble)
	case s.Pods > 0 && s.Succeeded == s.Pods:
		s.Phase = Succeeded
	case s.Running+s.Succeeded >= need && s.Running > 0:
		s.Phase = Running
	case s.Bound+s.Succeeded >= need:
		s.Phase, s.Reason = Starting, fmt.Sprintf("%d of %d run", s.Running, need)
	case s.Pods < need:
		s.Phase, s.Reason = Queued, fmt.Sprintf("%d of %d pods exist", s.Pods, need)
	default:
		s.Phase, s.Reason = Queued, fmt.Sprintf("%d of %d have a node", s.Bound+s.Succeeded, need)
	}
	return s
}

// wrong is what is the matter with a pod, in a word; empty if nothing is.
func wrong(pod *corev1.Pod, lost func(string) bool) string {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		return ""
	case pod.Status.Phase == corev1.PodFailed:
		return "failed"
	case pod.DeletionTimestamp != nil:
		return "terminating"
	case pod.Spec.NodeName != "" && lost != nil && lost(pod.Spec.NodeName):
		return "on a lost node"
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			waiting := list[i].State.Waiting
			if waiting == nil {
				continue
			}
			switch waiting.Reason {
			case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff", "CreateContainerConfigError":
				return "in " + waiting.Reason
			}
		}
	}
	return ""
}

// worst is the most frequent trouble, the first by name among equals.
func worst(trouble map[string]int) string {
	words := make([]string, 0, len(trouble))
	for word := range trouble {
		words = append(words, word)
	}
	slices.Sort(words)
	best := words[0]
	for _, word := range words[1:] {
		if trouble[word] > trouble[best] {
			best = word
		}
	}
	if n := trouble[best]; n > 1 {
		return fmt.Sprintf("%d pods %s", n, best)
	}
	return "1 pod " + best
}
