package plugin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// nodes converts the framework's nodes to values, and keeps those that did not change. It is for
// one goroutine: that of the scheduling cycles.
type nodes struct{ known []*fit.Node }

// of returns the nodes. They are valid until the next call.
func (n *nodes) of(infos []framework.NodeInfo) []*fit.Node {
	n.known = n.known[:min(len(n.known), len(infos))]
	for i, info := range infos {
		if i == len(n.known) {
			n.known = append(n.known, nodeOf(info))
			continue
		}
		// In the cycle of a PodGroup the pods of a node change without its generation.
		if k := n.known[i]; k.Generation != info.GetGeneration() || len(k.Pods) != len(info.GetPods()) {
			n.known[i] = nodeOf(info)
		}
	}
	return n.known
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
