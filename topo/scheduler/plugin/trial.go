package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// trialKey is what a trial is under in the state of a PodGroup's cycle, and what
// marks the placements in it that have begun.
const trialKey framework.StateKey = Name + "/trial"

// trial is the cycle of a native PodGroup: placements are tried one after
// another, and each member in each of them. It is the scheduling cycle's alone.
type trial struct {
	group *native
	nodes []framework.NodeInfo
	// places are the members' nodes in the placement that is tried.
	places map[types.UID]string
	// asked are the members that have been tried in it, and held those that got
	// their node.
	asked, held map[types.UID]bool
	begun       bool
	// over is why no member is to be tried any more: an earlier placement did, or
	// there is no other plan.
	over string
}

// Clone is for the framework.
func (t *trial) Clone() framework.StateData { return t }

// trialOf is the trial that a pod's cycle is part of; nil for other cycles.
func trialOf(state framework.CycleState) *trial {
	if !state.IsPodGroupSchedulingCycle() {
		return nil
	}
	data, err := state.GetPodGroupSchedulingCycle().Read(trialKey)
	if err != nil {
		return nil
	}
	t, _ := data.(*trial)
	return t
}

// prefilterNative gives a member of a native PodGroup its place in the placement
// that is tried.
func (p *Plugin) prefilterNative(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
	shares *sgpu.Want, chosen *sgpu.Chosen,
) (*framework.PreFilterResult, *framework.Status) {
	p.book.mu.Lock()
	c := p.book.cycle(pod)
	p.book.mu.Unlock()
	c.shares, c.chosen = shares, chosen
	t := trialOf(state)
	if t == nil {
		p.unasked.Do(func() {
			p.log.WarnContext(ctx, "a podgroup is placed without the map: the scheduler did not ask for placements",
				"remedy", "turn on the feature gate TopologyAwareWorkloadScheduling")
		})
		state.Write(stateKey, c)
		return nil, nil
	}
	if state.GetPlacementCycleState() != nil {
		if _, err := state.GetPlacementCycleState().Read(trialKey); err != nil {
			state.GetPlacementCycleState().Write(trialKey, t)
			p.begin(ctx, t, nodes)
		}
	}
	if t.over != "" {
		return nil, framework.NewStatus(framework.Unschedulable, t.group.words(t.over))
	}
	t.asked[pod.UID] = true
	if c.node = t.places[pod.UID]; c.node == "" {
		return nil, framework.NewStatus(framework.Unschedulable,
			t.group.words("others of it come before this pod, and there is no room for more"))
	}
	state.Write(stateKey, c)
	return &framework.PreFilterResult{NodeNames: sets.New(c.node)}, nil
}

// begin is called when a placement is tried. The first has its plan already, and
// the others are not needed if it succeeded. Else the PodGroup avoids the nodes
// that turned members away, and a plan is made around them.
func (p *Plugin) begin(ctx context.Context, t *trial, within []framework.NodeInfo) {
	if !t.begun {
		t.begun = true
		return
	}
	n := t.group
	if t.over != "" {
		return
	}
	if have := len(t.held) + n.placed(); have >= n.least && len(t.held) > 0 {
		t.over = fmt.Sprintf("%d of it have a place already", have)
		return
	}
	now := p.book.now()
	for uid := range t.asked {
		if node := t.places[uid]; node != "" && !t.held[uid] {
			p.shy.add(n.key, node, now)
			n.avoid[node] = now.Add(avoidMost)
		}
	}
	t.asked, t.held, t.places = map[types.UID]bool{}, map[types.UID]bool{}, nil
	_, t.over = p.planNative(ctx, t, within, false)
}

// sharesKey is what a trial's decision on shared cards is under in the state of
// the pod's cycle.
const sharesKey framework.StateKey = Name + "/shares"

type kept struct{ *allocation.Allocation }

// Clone is for the framework.
func (k kept) Clone() framework.StateData { return k }

// remember notes what a trial decided for a pod. The framework takes it back and,
// once all members have a place, reserves for one after another, with a snapshot
// that does not show what the others got.
func (p *Plugin) remember(state framework.CycleState, pod *corev1.Pod) {
	if decision := p.decision(pod.UID); decision != nil {
		state.Write(sharesKey, kept{decision})
	}
}

// recall decides as the trial did, and tells whether it did.
func (p *Plugin) recall(state framework.CycleState, pod *corev1.Pod, node string) bool {
	data, err := state.Read(sharesKey)
	if err != nil {
		return false
	}
	k, ok := data.(kept)
	if !ok || k.Node != node {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decisions[pod.UID] = k.Allocation
	return true
}

// placed is how many members have a node.
func (n *native) placed() (placed int) {
	for _, m := range n.ranks {
		if m.stage == bound {
			placed++
		}
	}
	return placed
}
