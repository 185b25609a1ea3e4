package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// Filter accepts a member's own place alone, since nominated nodes are tried
// whatever PreFilter says, and charges what others were promised to everybody.
func (p *Plugin) Filter(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) *framework.Status {
	c := read(state)
	if c == nil {
		return nil
	}
	node := info.Node().Name
	if c.node != "" && c.node != node {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) are not the pod's place in its gang")
	}
	s := c.charge(info)
	if s == nil && c.chosen != nil {
		s = p.filterChosen(c, info)
	}
	if s == nil && c.shares != nil {
		s = p.filterShares(c.shares, info)
	}
	return s
}

// charge tells whether what others were promised leaves room on a node.
func (c *cycle) charge(info framework.NodeInfo) *framework.Status {
	promised := c.promises[info.Node().Name]
	if len(promised) == 0 {
		return nil
	}
	room := fit.RoomOf(info, promised, c.priority, c.own)
	if !room.Promised() {
		return nil
	}
	if lacks := room.Lacks(c.amounts); lacks != "" {
		return framework.NewStatus(framework.Unschedulable, fmt.Sprintf("node(s) have %s promised to a gang", lacks))
	}
	return nil
}

func (c *cycle) own(uid types.UID) bool { return uid == c.uid }

// read is what PreFilter wrote; nil if it had nothing to say.
func read(state framework.CycleState) *cycle {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}
