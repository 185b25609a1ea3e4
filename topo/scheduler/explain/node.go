package explain

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// node is a Node with its pods, in the form in which package fit counts.
type node struct {
	framework.NodeInfo
	node *corev1.Node
	pods []framework.PodInfo
	// requested is the sum over its pods.
	requested amounts
}

// GetGeneration is one for all: a question is asked of one state.
func (n *node) GetGeneration() int64         { return 1 }
func (n *node) Node() *corev1.Node           { return n.node }
func (n *node) GetPods() []framework.PodInfo { return n.pods }
func (n *node) GetAllocatable() framework.Resource {
	return amounts{of: fit.AmountsOf(n.node.Status.Allocatable)}
}
func (n *node) GetRequested() framework.Resource { return n.requested }

func (n *node) add(pod *corev1.Pod) {
	n.pods = append(n.pods, podInfo{pod: pod})
	n.requested.of.Add(fit.Requests(pod), 1)
}

// amounts are resources in the unit of [fit.Amounts].
type amounts struct {
	framework.Resource
	of fit.Amounts
}

func (a amounts) GetMilliCPU() int64         { return a.of[corev1.ResourceCPU] }
func (a amounts) GetMemory() int64           { return a.of[corev1.ResourceMemory] }
func (a amounts) GetEphemeralStorage() int64 { return a.of[corev1.ResourceEphemeralStorage] }
func (a amounts) GetAllowedPodNumber() int   { return int(a.of[corev1.ResourcePods]) }

func (a amounts) GetScalarResources() map[corev1.ResourceName]int64 { return a.of }

type podInfo struct {
	framework.PodInfo
	pod *corev1.Pod
}

func (p podInfo) GetPod() *corev1.Pod { return p.pod }
