package plugin

import (
	"fmt"
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
// the devices for claims.
type seen struct {
	generation int64
	pods       int
	claims     *claims.Node
}

// of returns the nodes with their devices for claims. They are valid until the next call.
func (n *nodes) of(infos []framework.NodeInfo, devices *claims.Nodes) []*planner.Node {
	n.known = slices.Grow(n.known, len(infos))[:len(infos)]
	n.seen = slices.Grow(n.seen, len(infos))[:len(infos)]
	for i, info := range infos {
		own := devices.Of(info.Node().Name)
		if now := (seen{info.GetGeneration(), len(info.GetPods()), own}); n.known[i] == nil || n.seen[i] != now {
			n.known[i], n.seen[i] = nodeOf(info), now
			n.known[i].SetClaims(own, devices.Extended())
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

// nodesOf returns the nodes with the devices that claims can get.
func (p *Plugin) nodesOf(infos []framework.NodeInfo) []*planner.Node {
	p.readClaims()
	return p.nodes.of(infos, p.devices)
}

// readClaims updates the devices for claims.
func (p *Plugin) readClaims() {
	cluster, err := claims.Read(p.handle.SharedDRAManager())
	if err != nil {
		p.log.Warn("devices for claims are not up to date", "err", err)
		return
	}
	p.devices.Update(cluster)
}

// claim gives the members of a gang the demands of their claims.
func (p *Plugin) claim(g *planner.Gang) error {
	pods, placed, some := make([]*corev1.Pod, len(g.Members)), make([]bool, len(g.Members)), false
	for i := range g.Members {
		m := &g.Members[i]
		pods[i], placed[i] = m.Pod, m.Node != ""
		some = some || len(m.Pod.Spec.ResourceClaims) > 0
	}
	dra := p.handle.SharedDRAManager()
	if !some || dra == nil {
		return nil
	}
	demands, err := p.devices.Demands(dra.ResourceClaims(), pods, placed)
	if err != nil {
		return err
	}
	for i, d := range demands {
		m := &g.Members[i]
		if m.Class = m.Class.With(d); d == nil {
			continue
		}
		m.GPUs = max(m.GPUs, int(d.GPUs))
		switch {
		case d.Waits == "":
		case !p.cache.IsNative(m.Pod):
			// Each member waits for the others before it is bound, and DynamicResources for the claim's first pod.
			return fmt.Errorf("its pods share ResourceClaim %s, which has no devices yet: only a native PodGroup may", d.Waits)
		case g.Label == "" && d.OneNode:
			g.Label = corev1.LabelHostname
		}
	}
	return nil
}
