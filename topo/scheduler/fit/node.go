package fit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is a node with its pods. It is not changed once made.
type Node struct {
	*corev1.Node
	Pods []*corev1.Pod
	// Allocatable holds the resources for pods, Requested the sum of the requests of the node's
	// pods.
	Allocatable, Requested Resources
	// Generation changes with everything else. No two nodes have the same one.
	Generation int64
}

// Resources are amounts of resources in the units of [Amounts], in the form in which
// kube-scheduler keeps them.
type Resources struct {
	CPU, Memory, EphemeralStorage, Pods int64
	Scalar                              map[corev1.ResourceName]int64
}

// Of returns the amount of one resource.
func (r *Resources) Of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.CPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	default:
		return r.Scalar[name]
	}
}

// NewNode returns a node with pods that are bound to it.
func NewNode(node *corev1.Node, pods ...*corev1.Pod) *Node {
	requested := Amounts{}
	for _, pod := range pods {
		requested.Add(Requests(pod), 1)
	}
	return &Node{
		Node: node, Pods: pods, Requested: requested.resources(), Allocatable: AmountsOf(node.Status.Allocatable).resources(),
	}
}

func (a Amounts) resources() Resources {
	return Resources{
		CPU: a[corev1.ResourceCPU], Memory: a[corev1.ResourceMemory], Pods: a[corev1.ResourcePods],
		EphemeralStorage: a[corev1.ResourceEphemeralStorage], Scalar: a,
	}
}

func (n *Node) has(pod types.UID) bool {
	return slices.ContainsFunc(n.Pods, func(p *corev1.Pod) bool { return p.UID == pod })
}
