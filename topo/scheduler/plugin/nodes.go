package plugin

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// nodes converts the framework's nodes to values, and keeps those that did not change. It is for
// one goroutine: that of the scheduling cycles.
type nodes struct {
	known []*planner.Node
	seen  []seen
}

// seen identifies a node's state: in the cycle of a PodGroup its pods change without its generation.
type seen struct {
	generation int64
	pods       int
}

// of returns the nodes. They are valid until the next call.
func (n *nodes) of(infos []framework.NodeInfo) []*planner.Node {
	n.known = slices.Grow(n.known, len(infos))[:len(infos)]
	n.seen = slices.Grow(n.seen, len(infos))[:len(infos)]
	for i, info := range infos {
		if now := (seen{info.GetGeneration(), len(info.GetPods())}); n.known[i] == nil || n.seen[i] != now {
			n.known[i], n.seen[i] = nodeOf(info), now
		}
	}
	return n.known
}

func nodeOf(info framework.NodeInfo) *planner.Node {
	out := &planner.Node{
		Node: info.Node(), Pods: make([]*corev1.Pod, 0, len(info.GetPods())),
		Allocatable: amountsOf(info.GetAllocatable()), Requested: amountsOf(info.GetRequested()),
	}
	for _, pod := range info.GetPods() {
		out.Pods = append(out.Pods, pod.GetPod())
	}
	out.Requested[corev1.ResourcePods] = int64(len(out.Pods))
	return out
}

func amountsOf(r framework.Resource) planner.Amounts {
	out := planner.Amounts{
		corev1.ResourceCPU: r.GetMilliCPU(), corev1.ResourceMemory: r.GetMemory(),
		corev1.ResourceEphemeralStorage: r.GetEphemeralStorage(), corev1.ResourcePods: int64(r.GetAllowedPodNumber()),
	}
	maps.Copy(out, r.GetScalarResources())
	return out
}
