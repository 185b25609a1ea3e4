package plugin

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// nodes converts the framework's nodes to values, and keeps those that did not change. It is for
// one goroutine: that of the scheduling cycles.
type nodes struct {
	known []*planner.Node
	seen  []seen
}

// seen identifies a node's state: in the cycle of a PodGroup its pods change without its generation, and so do
// the GPUs that claims can get.
type seen struct {
	generation int64
	pods       int
	claimable  int64
}

// of returns the nodes. They are valid until the next call. claimable has the free GPUs of nodes whose pods get them
// by claims, under the names gpus.
func (n *nodes) of(infos []framework.NodeInfo, gpus []corev1.ResourceName, claimable map[string]int64) []*planner.Node {
	n.known = slices.Grow(n.known, len(infos))[:len(infos)]
	n.seen = slices.Grow(n.seen, len(infos))[:len(infos)]
	for i, info := range infos {
		free := int64(-1)
		if claimable != nil {
			if count, ok := claimable[info.Node().Name]; ok {
				free = count
			}
		}
		if now := (seen{info.GetGeneration(), len(info.GetPods()), free}); n.known[i] == nil || n.seen[i] != now {
			n.known[i], n.seen[i] = nodeOf(info), now
			for _, gpu := range gpus {
				// The scheduler makes claims only where the kubelet offers none of the resource.
				if own := n.known[i]; free >= 0 && own.Allocatable[gpu] == 0 {
					own.Allocatable[gpu] = own.Requested[gpu] + free
				}
			}
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

// nodesOf returns the nodes with the GPUs that claims can get.
func (p *Plugin) nodesOf(infos []framework.NodeInfo) []*planner.Node {
	gpus := p.gpus.GPUs()
	claimable, err := claims.Free(p.handle.SharedDRAManager(), gpus)
	if err != nil {
		p.log.Warn("GPUs for claims are not counted", "err", err)
	}
	return p.nodes.of(infos, gpus, claimable)
}
