package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// maxPlacements bounds the plans of a PodGroup: as many as a gang of labels gets before it releases
// its nodes.
const maxPlacements = 1 + gangcache.MaxRetries

// podGroupKey is the key of a podGroupCycle in the state of a PodGroup's cycle, and in the
// states of the placements that have begun.
const podGroupKey framework.StateKey = Name + "/podgroup"

// permitTimeout bounds how long a member of a native PodGroup waits for the others, which follow in the same cycle.
const permitTimeout = time.Minute

var errNotNative = errors.New(
	"the scheduler's feature gate GenericWorkload is on, and the argument genericWorkload of Heddle is not")

// podGroupCycle is the cycle of a native PodGroup, which tries placements one after another, and
// all members in each of them. Only the scheduling cycle uses it.
type podGroupCycle struct {
	gang  planner.Gang
	nodes []framework.NodeInfo
	// reservations bind a group in need of repair; nil for any other group.
	reservations planner.Reservations
	// minCount is the number of members that must have a node, and placed the number that have one.
	minCount, placed int
	// places are the members' nodes in the current placement, asked the members that were
	// tried in it, held those that got their node.
	places      map[types.UID]string
	asked, held map[types.UID]bool
	// over explains why no more members are tried: an earlier placement has nodes for the group, or
	// no other plan exists.
	over string
	// leaving lists the pods that must leave to make room.
	leaving []*corev1.Pod
	// first is the member that is tried before others have a node, so that these cannot be what
	// rejects it. It is nil if some have a node.
	first *firstMember
}

// firstMember is a member with its cycle, in which every plugin has its state.
type firstMember struct {
	pod   *corev1.Pod
	state framework.CycleState
	cycle *cycle
}

// Clone is for the framework.
func (c *podGroupCycle) Clone() framework.StateData { return c }

// podGroupCycleOf returns the PodGroup's cycle of a pod's cycle; nil if it is in none.
func podGroupCycleOf(state framework.CycleState) *podGroupCycle {
	if !state.IsPodGroupSchedulingCycle() {
		return nil
	}
	data, _ := state.GetPodGroupSchedulingCycle().Read(podGroupKey)
	c, _ := data.(*podGroupCycle)
	return c
}

// GeneratePlacements plans for a native PodGroup. It returns all nodes as often as the group may
// be planned: the framework tries every placement, but those after a success cost nothing.
//
// A profile has one such plugin, so that it must disable TopologyPlacementGenerator. This
// plugin honors the topology constraint as well.
func (p *Plugin) GeneratePlacements(
	ctx context.Context, state framework.PodGroupCycleState, group framework.PodGroupInfo, parent *framework.Placement,
) (*framework.GeneratePlacementsResult, *framework.Status) {
	key := types.NamespacedName{Namespace: group.GetNamespace(), Name: group.GetName()}
	reject := func(reason string) (*framework.GeneratePlacementsResult, *framework.Status) {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, gangcache.Rejection(key, reason))
	}
	all := &framework.GeneratePlacementsResult{Placements: []*framework.Placement{parent}}
	if group.GetType() == framework.CompositePodGroupKeyType {
		within, err := p.compositePlacement(ctx, group, parent)
		if err != nil {
			return reject(err.Error())
		}
		all.Placements[0] = within
		return all, nil
	}
	if !p.args.GenericWorkload {
		return reject(errNotNative.Error())
	}
	c, err := p.readPodGroup(key, group)
	if err != nil {
		return reject(err.Error())
	}
	c.nodes = parent.Nodes
	p.keepSpares(c.nodes)
	repair := c.placed > 0 && c.placed < c.minCount || c.placed == 0 && p.suspects.Ended(key.String(), time.Now())
	if repair && c.gang.Priority() >= p.args.SparesPriority {
		c.reservations = p.cache.Reservations()
	}
	state.Write(podGroupKey, c)
	ok, reason := p.planPodGroup(ctx, c, true)
	switch {
	case !ok:
		return reject(reason)
	case len(c.leaving) > 0:
		// PodGroupPostFilter evicts, after a member was tried. All members are rejected.
		c.over = reason
	default:
		for i := range maxPlacements - 1 {
			all.Placements = append(all.Placements, &framework.Placement{Name: fmt.Sprintf("plan %d", i+2), Nodes: parent.Nodes})
		}
	}
	return all, nil
}

// readPodGroup converts a native PodGroup to a gang. Only this function knows the API's PodGroup,
// which has changed with every version of Kubernetes.
func (p *Plugin) readPodGroup(key types.NamespacedName, group framework.PodGroupInfo) (*podGroupCycle, error) {
	avoid, _ := p.cache.Backoffs.Avoided(key)
	c := &podGroupCycle{
		gang: planner.Gang{Key: key, Avoid: avoid}, minCount: 1,
		asked: map[types.UID]bool{}, held: map[types.UID]bool{},
	}
	object := group.GetPodGroup()
	if object == nil {
		return nil, errors.New("PodGroup not found")
	}
	if object.Spec.SchedulingPolicy.Gang != nil {
		c.minCount = int(object.Spec.SchedulingPolicy.Gang.MinCount)
	}
	if constraints := object.Spec.SchedulingConstraints; constraints != nil {
		for _, constraint := range constraints.Topology { // The API allows one.
			c.gang.Label = constraint.Key
		}
	}
	own, err := gang.ReadPlacement(key, object.Annotations, p.args.Domains)
	if err != nil {
		return nil, fmt.Errorf("PodGroup: %w", err)
	}
	state, err := p.handle.SnapshotSharedLister().PodGroupStates().Get(key.Namespace, key.Name)
	if err != nil {
		return nil, fmt.Errorf("its pods are not known: %w", err)
	}
	placed := state.ScheduledPods()
	c.placed = len(placed)
	pods := slices.Concat(placed, group.GetUnscheduledPods())
	if len(pods) == 0 {
		return nil, errors.New("it has no pods")
	}
	placement.OrderPods(pods)
	specs := make([]gang.Spec, 0, len(pods))
	var faults []error
	for _, pod := range pods {
		spec, err := gang.ReadPlacement(key, pod.Annotations, p.args.Domains)
		if err != nil && len(faults) == 0 {
			faults = append(faults, fmt.Errorf("pod %s: %w", pod.Name, err))
		}
		specs = append(specs, spec)
		m := p.cache.NewMember(pod)
		if slices.Contains(placed, pod) {
			m.Node = pod.Spec.NodeName
		}
		c.gang.Members = append(c.gang.Members, m)
	}
	c.gang.MinMember = max(c.placed+1, c.minCount)
	c.gang.Spec, err = gang.Merge(specs, &own)
	return c, errors.Join(append(faults, err)...)
}

// planPodGroup finds nodes for the members of a PodGroup, and the pods that must leave first.
func (p *Plugin) planPodGroup(ctx context.Context, c *podGroupCycle, mayPreempt bool) (ok bool, reason string) {
	request := planner.Request{Gangs: []planner.Gang{c.gang}}
	request.Nodes, request.Reservations = p.nodesOf(c.nodes), c.reservations
	plan := p.plan(ctx, &request, mayPreempt)
	if plan.Places == nil {
		_, avoided := p.cache.Backoffs.Avoided(c.gang.Key)
		return false, plan.Reason + avoided
	}
	c.leaving = plan.Leaving
	c.places = make(map[types.UID]string, len(c.gang.Members))
	for i, node := range plan.Places[0].Nodes {
		c.places[c.gang.Members[i].Pod.UID] = node
	}
	return true, plan.Reason
}

// preFilterPodGroup gives a member of a native PodGroup its node in the current placement.
func (p *Plugin) preFilterPodGroup(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, c *cycle,
) *framework.Status {
	g := podGroupCycleOf(state)
	if g == nil { // The gate TopologyAwareWorkloadScheduling is off: it goes by what Kubernetes knows.
		return nil
	}
	if placement := state.GetPlacementCycleState(); placement != nil {
		if _, err := placement.Read(podGroupKey); err != nil {
			placement.Write(podGroupKey, g)
			p.beginPlacement(ctx, g)
		}
	}
	reason := g.over
	if reason == "" {
		if len(g.asked)+g.placed == 0 {
			g.first = &firstMember{pod, state, c}
		}
		g.asked[pod.UID] = true
		if g.reservations != nil {
			c.Reservations = g.reservations
		}
		if c.Node = g.places[pod.UID]; c.Node == "" {
			reason = "other pods of it come first, and no more fit"
		}
	}
	if reason != "" {
		return framework.NewStatus(framework.Unschedulable, gangcache.Rejection(g.gang.Key, reason))
	}
	return nil
}

// beginPlacement is called when a placement begins. The first has its plan already, and so has
// one that follows a placement without tried members. After a success the others are not needed.
// Otherwise it plans around the nodes that rejected members.
func (p *Plugin) beginPlacement(ctx context.Context, c *podGroupCycle) {
	switch have := len(c.held) + c.placed; {
	case len(c.asked) == 0, c.over != "":
		return
	case have >= c.minCount && len(c.held) > 0:
		c.over = fmt.Sprintf("%d of it have a place already", have)
		return
	}
	p.learn(ctx, c)
	_, c.over = p.planPodGroup(ctx, c, false)
}

// learn makes the PodGroup avoid the nodes that rejected members of a placement, and all others
// that reject the first member for reasons unknown to planner, in this cycle and for a while.
func (p *Plugin) learn(ctx context.Context, c *podGroupCycle) {
	var nodes []string
	for uid := range c.asked {
		if node := c.places[uid]; node != "" && !c.held[uid] {
			nodes = append(nodes, node)
		}
	}
	message := ""
	if f := c.first; f != nil && !c.held[f.pod.UID] {
		var others []string
		others, message = p.rejecting(ctx, f.state, f.pod, f.cycle)
		nodes = append(nodes, others...)
	}
	if len(nodes) > 0 {
		p.cache.Backoffs.Add(c.gang.Key, message, nodes...)
		c.gang.Avoid = append(c.gang.Avoid, nodes...)
	}
	c.asked, c.held, c.places, c.first = map[types.UID]bool{}, map[types.UID]bool{}, nil, nil
}

// permitPodGroup makes a member of a native PodGroup wait until enough members hold a node.
// GangScheduling does the same, but each member also activates all others, which holds up the
// scheduler for a second where a gang has 1,000: the documented profile disables that.
func (p *Plugin) permitPodGroup(pod *corev1.Pod) (*framework.Status, time.Duration) {
	groups, name := p.handle.PodGroupManager(), *pod.Spec.SchedulingGroup.PodGroupName
	group, err := groups.PodGroups().Get(pod.Namespace, name)
	if err != nil {
		return framework.AsStatus(fmt.Errorf("PodGroup %s: %w", name, err)), 0
	}
	state, err := groups.PodGroupStates().Get(pod.Namespace, name)
	if err != nil {
		return framework.AsStatus(fmt.Errorf("pods of PodGroup %s: %w", name, err)), 0
	}
	switch policy := group.Spec.SchedulingPolicy.Gang; {
	case policy == nil:
		return nil, 0
	case state.ScheduledPodsCount() < int(policy.MinCount):
		return framework.NewStatus(framework.Wait), permitTimeout
	}
	for uid := range state.AssumedPods() {
		if waiting := p.handle.GetWaitingPod(uid); waiting != nil {
			waiting.Allow(Name)
		}
	}
	return nil, 0
}
