package doctor

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owner is who made a pod: a DaemonSet, a Deployment, or the pod itself.
type Owner struct {
	Kind, Namespace, Name string
}

// Group is an owner with the names of those of its pods that are meant, sorted.
type Group struct {
	Owner
	Pods []string
}

// Blocked returns, by owner, the pods that could not be scheduled to a node
// with this taint: DaemonSets first, then by kind, namespace and name. Pods
// that have ended do not come back anyway, and static pods ask no scheduler.
func Blocked(pods []corev1.Pod, taint corev1.Taint) []Group {
	byOwner := map[Owner][]string{}
	for i := range pods {
		p := &pods[i]
		if ended(p) || isStatic(p) || toleratedBy(p, taint) {
			continue
		}
		o := ownerOf(p)
		byOwner[o] = append(byOwner[o], p.Name)
	}
	groups := make([]Group, 0, len(byOwner))
	for o, names := range byOwner {
		slices.Sort(names)
		groups = append(groups, Group{o, names})
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(order(a.Kind), order(b.Kind)), strings.Compare(a.Kind, b.Kind),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return groups
}

// order puts DaemonSets first: nothing else moves to another node in their
// place.
func order(kind string) int {
	if kind == "DaemonSet" {
		return 0
	}
	return 1
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func isStatic(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

func toleratedBy(p *corev1.Pod, taint corev1.Taint) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) })
}

// tolerates is the scheduler's rule for the operators Equal and Exists. The
// numeric operators are for numbers, which our taints' values are not.
func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
	}
	return false
}

// ownerOf names the controller of a pod. A ReplicaSet that a Deployment made
// is named as the Deployment with the pods' template hash after it; the
// Deployment is what people know.
func ownerOf(p *corev1.Pod) Owner {
	c := metav1.GetControllerOfNoCopy(p)
	if c == nil {
		return Owner{"Pod", p.Namespace, p.Name}
	}
	if hash := p.Labels["pod-template-hash"]; c.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(c.Name, "-"+hash); ok {
			return Owner{"Deployment", p.Namespace, name}
		}
	}
	return Owner{c.Kind, p.Namespace, c.Name}
}
