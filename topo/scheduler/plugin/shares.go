package plugin

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// sharesOf is what a pod asks for of shared cards; nil if nothing.
func (p *Plugin) sharesOf(pod *corev1.Pod) (*sgpu.Want, error) {
	want, err := sgpu.Read(pod, p.cards.Config)
	if errors.Is(err, quota.ErrNoShare) {
		return nil, nil //nolint:nilnil // Most pods share nothing, which is no error.
	}
	if err == nil {
		err = want.Heed(pod.Annotations)
	}
	return want, err
}

// decision is what was decided for a pod whose annotation is not seen yet.
func (p *Plugin) decision(uid types.UID) *allocation.Allocation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decisions[uid]
}

// filterShares tells why a node has no cards for a pod.
func (p *Plugin) filterShares(want *sgpu.Want, info framework.NodeInfo) *framework.Status {
	switch _, why, err := p.cards.Try(info, want, p.args.Placement, p.decision); {
	case err != nil:
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) have no shared cards")
	case why != "":
		return framework.NewStatus(framework.Unschedulable, "node(s) have no card left: "+why)
	}
	return nil
}

// scoreShares marks a node by how full its cards would be.
func (p *Plugin) scoreShares(want *sgpu.Want, info framework.NodeInfo) int64 {
	load, why, err := p.cards.Try(info, want, p.args.Placement, p.decision)
	switch {
	case err != nil || why != "":
		return noMark
	case want.Node(p.args.Placement) == config.PlacementSpread:
		return framework.MaxScore - load
	}
	return load
}

// reserveShares decides which cards a pod gets.
func (p *Plugin) reserveShares(want *sgpu.Want, pod *corev1.Pod, node string) *framework.Status {
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return framework.AsStatus(fmt.Errorf("node %s: %w", node, err))
	}
	free, err := p.cards.Now(info, p.decision)
	if err != nil {
		return framework.NewStatus(framework.Unschedulable, "node has no shared cards any more")
	}
	got, why := want.Place(free, p.args.Placement)
	if why != "" {
		return framework.NewStatus(framework.Unschedulable, why)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decisions[pod.UID] = &allocation.Allocation{Version: allocation.Version, Node: node, Containers: got}
	return nil
}

// forgetShares takes a decision back.
func (p *Plugin) forgetShares(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.decisions, uid)
}

// Bind binds pods that share cards, with the decision in the Binding: the API
// server writes both or neither. All others are the next plugin's.
func (p *Plugin) Bind(ctx context.Context, _ framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	decision := p.decision(pod.UID)
	if decision == nil || decision.Node != node {
		return framework.NewStatus(framework.Skip)
	}
	err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{wellknown.SGPUAllocation: decision.String()},
		},
		Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return framework.AsStatus(fmt.Errorf("bind %s to %s: %w", pod.Name, node, err))
	}
	return nil
}
