package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
)

// native is a PodGroup of Kubernetes' own API (scheduling.k8s.io) in its cycle.
// Kubernetes says who is in it, how many must have a node, and lets them go
// together; where they go is ours to say. No book has it: what it holds is the
// framework's business, within one cycle.
type native struct {
	// The key, the wishes, and the nodes that it avoids; never in the book.
	entry
	// ranks are its members in order: those that have a node, and those that the
	// cycle is about.
	ranks []*member
	// least is how many must have a node, those that have one included.
	least int
	// topology is the label of the nodes whose value all members must share;
	// empty if they need not.
	topology string
}

// isNative tells whether a pod's gang is Kubernetes' to keep together.
func (p *Plugin) isNative(pod *corev1.Pod) bool {
	g := pod.Spec.SchedulingGroup
	return p.args.GenericWorkload && g != nil && g.PodGroupName != nil
}

// errNotNative is for a cycle that should not be.
var errNotNative = errors.New(
	"the scheduler's gate GenericWorkload is on, and the argument genericWorkload of Heddle is not")

// nativeOf reads a PodGroup that is to be placed, as far as that goes; the error
// is for people.
//
// It is the one place that knows what the API's PodGroup looks like: that has
// changed with every version of Kubernetes.
func (p *Plugin) nativeOf(group framework.PodGroupInfo) (*native, error) {
	key := types.NamespacedName{Namespace: group.GetNamespace(), Name: group.GetName()}
	n := &native{entry: entry{key: key, avoid: p.shy.of(key, p.book.now())}, least: 1}
	object := group.GetPodGroup()
	if object == nil {
		return n, errors.New("there is no PodGroup of that name")
	}
	if object.Spec.SchedulingPolicy.Gang != nil {
		n.least = int(object.Spec.SchedulingPolicy.Gang.MinCount)
	}
	if c := object.Spec.SchedulingConstraints; c != nil {
		// The API has one at most.
		for _, constraint := range c.Topology {
			n.topology = constraint.Key
		}
	}
	own, fault := gang.ReadPlacement(key, object.Annotations, p.book.domains)
	if fault != nil {
		return n, fmt.Errorf("PodGroup: %w", fault)
	}
	state, err := p.handle.SnapshotSharedLister().PodGroupStates().Get(key.Namespace, key.Name)
	if err != nil {
		return n, fmt.Errorf("its pods are not known: %w", err)
	}
	return n, p.enroll(n, &own, state.ScheduledPods(), group.GetUnscheduledPods())
}

// enroll makes members of pods, and one gang of what all of them say.
func (p *Plugin) enroll(n *native, own *gang.Spec, placed, waiting []*corev1.Pod) error {
	pods := slices.Concat(placed, waiting)
	gang.Order(pods)
	stages := make(map[types.UID]stage, len(placed))
	for _, pod := range placed {
		stages[pod.UID] = bound
	}
	specs := make([]gang.Spec, 0, len(pods))
	var faults []error
	for _, pod := range pods {
		spec, fault := gang.ReadPlacement(n.key, pod.Annotations, p.book.domains)
		if fault != nil && len(faults) == 0 {
			faults = append(faults, fmt.Errorf("pod %s: %w", pod.Name, fault))
		}
		specs = append(specs, spec)
		m := &member{pod: pod, class: p.book.classOf(pod), stage: stages[pod.UID]}
		if m.stage == bound {
			m.node = pod.Spec.NodeName
		}
		m.gpus = int(m.class.Amount(corev1.ResourceName(p.book.domains.GPUResource())))
		n.ranks = append(n.ranks, m)
	}
	merged, err := gang.Merge(specs, own)
	n.gang, n.gang.Key = merged, n.key
	return errors.Join(append(faults, err)...)
}

// refuse tells a PodGroup why it has no nodes, and that nobody's death would
// help.
func (n *native) refuse(why string) *framework.Status {
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, n.words(why))
}

func (n *native) words(why string) string {
	return fmt.Sprintf("rejected by podgroup %s: %s", n.key.Name, why)
}

// planNative finds a node for the members of a trial's PodGroup among its nodes,
// or only among those within, which are some of them; with preempt as if all
// pods of lower priority were gone. Pods beyond the minimum for which there is
// no room get no place.
func (p *Plugin) planNative(
	ctx context.Context, t *trial, within []framework.NodeInfo, preempt bool,
) (plan placement.Plan, why string) {
	b, c, n := p.book, &p.chart, t.group
	b.mu.Lock()
	defer b.mu.Unlock()
	m, _ := p.source.Current()
	c.update(ctx, m, p.source.Fresh(m, b.now()), t.nodes, p.log)
	g, classes := c.gang(n.ranks)
	g.MinMember = max(len(g.Placed)+1, n.least)
	if g.MinMember > len(n.ranks) {
		return plan, fmt.Sprintf("%d of %d pods exist", len(n.ranks), g.MinMember)
	}
	l := planner{plugin: p, nodes: t.nodes, preempt: preempt}
	if why = l.constrain(&g, &n.entry); why != "" {
		return plan, why
	}
	s := search{chart: c, nodes: t.nodes, gang: &g, room: l.capacity(classes, n.ranks[0].pod)}
	if within != nil {
		s.confine(within)
	}
	plan, err := s.place(n.topology)
	if err != nil {
		return plan, err.Error()
	}
	t.places = make(map[types.UID]string, len(n.ranks))
	for rank, id := range plan.Nodes {
		if m := n.ranks[rank]; m.stage == pending && id != placement.None {
			t.places[m.pod.UID] = c.tree.Name(id)
		}
	}
	return plan, ""
}
