package plugin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// nodes converts the framework's nodes to values, and keeps those that did not change. It is for
// one goroutine: that of the scheduling cycles.
type nodes struct{ known []*fit.Node }

func (n *nodes) of(infos []framework.NodeInfo) []*fit.Node {
	out := make([]*fit.Node, len(infos))
	for i, info := range infos {
		// In the cycle of a PodGroup the pods of a node change without its generation.
		if i < len(n.known) && n.known[i].Node == info.Node() && n.known[i].Generation == info.GetGeneration() &&
			len(n.known[i].Pods) == len(info.GetPods()) {
			out[i] = n.known[i]
		} else {
			out[i] = nodeOf(info)
		}
	}
	n.known = out
	return out
}

func nodeOf(info framework.NodeInfo) *fit.Node {
	out := &fit.Node{
		Node: info.Node(), Generation: info.GetGeneration(), Pods: make([]*corev1.Pod, 0, len(info.GetPods())),
		Allocatable: resourcesOf(info.GetAllocatable()), Requested: resourcesOf(info.GetRequested()),
	}
	for _, pod := range info.GetPods() {
		out.Pods = append(out.Pods, pod.GetPod())
	}
	return out
}

func resourcesOf(r framework.Resource) fit.Resources {
	return fit.Resources{
		CPU: r.GetMilliCPU(), Memory: r.GetMemory(), EphemeralStorage: r.GetEphemeralStorage(),
		Pods: int64(r.GetAllowedPodNumber()), Scalar: r.GetScalarResources(),
	}
}
