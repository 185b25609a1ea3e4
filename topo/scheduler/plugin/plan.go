package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// preemptionTime is how long a promise of room holds that others have to leave
// first: a pod's usual grace, and some.
const preemptionTime = 2 * time.Minute

// planner plans for a unit, under the book's lock.
type planner struct {
	plugin *Plugin
	nodes  []framework.NodeInfo
	// preempt counts the room of pods of lower priority as well.
	preempt bool
}

// unit gives every gang of a unit that lacks nodes a plan, or none of them any.
// The pod's gang is planned for even if it has what it needs. why is empty if it
// is done; then the pod may have no place nevertheless, beyond what there is room
// for.
func (l *planner) unit(ctx context.Context, unit []*entry, pod *corev1.Pod) (why string) {
	begin := time.Now()
	defer func() { l.plugin.meters.planned(time.Since(begin), why) }()
	source := l.plugin.source
	m, _ := source.Current()
	l.plugin.chart.update(ctx, m, source.Fresh(m, l.plugin.book.now()), l.nodes, l.plugin.log)
	b := l.plugin.book
	var made []*entry
	for _, e := range unit {
		own := b.of[pod.UID] == e
		if !own && (e.satisfied() || !e.deadline.IsZero()) {
			continue
		}
		if why = l.entry(e); why != "" {
			if len(unit) > 1 {
				why = fmt.Sprintf("podgroup %s of its groups: %s", e.key.Name, why)
			}
			l.undo(made)
			return why
		}
		made = append(made, e)
	}
	return ""
}

// undo takes back what gangs were promised just now, and before: one of those
// that they run with has no room.
func (l *planner) undo(made []*entry) {
	for _, e := range made {
		held := false
		for _, m := range e.members {
			if m.stage == planned {
				m.stage, m.node = pending, ""
			}
			held = held || m.stage == reserved
		}
		if !held {
			e.deadline, e.preempting = time.Time{}, false
		}
	}
	l.plugin.book.promise()
}

// entry plans for one gang; if there is no room for it, nothing changes.
func (l *planner) entry(e *entry) (why string) {
	b, c := l.plugin.book, &l.plugin.chart
	members := make([]*member, 0, len(e.members))
	for _, m := range ordered(e) {
		if m.live() {
			members = append(members, m)
		}
	}
	g, classes := c.gang(members)
	held := len(g.Placed)
	g.MinMember = held + 1
	if !e.satisfied() {
		g.MinMember = held + max(1, e.gang.MinMember-e.count(planned))
	}
	if g.MinMember > len(members) {
		return fmt.Sprintf("%d of %d pods exist", len(members), g.MinMember)
	}
	if why := l.constrain(&g, e); why != "" {
		return why
	}
	plan, err := placement.Place(c.tree, &g, l.capacity(classes, members[0].pod))
	if err != nil {
		return err.Error()
	}
	for rank, id := range plan.Nodes {
		if m := members[rank]; m.stage == pending && id != placement.None {
			m.stage, m.node = planned, c.tree.Name(id)
		}
	}
	if !e.satisfied() {
		e.reached = plan.Group.Kind
	}
	e.preempting, e.called, e.nudged = l.preempt, false, b.now()
	e.deadline = b.now().Add(e.gang.Timeout)
	if l.preempt {
		e.deadline = b.now().Add(max(e.gang.Timeout, preemptionTime))
	}
	b.promise()
	return ""
}

// gang is what placement needs to know of the members, which are in the order
// of their ranks: tasks are runs of pods that are alike.
func (c *chart) gang(members []*member) (g placement.Gang, classes []*fit.Class) {
	var last *member
	for rank, m := range members {
		if last == nil || m.class.Key != last.class.Key || gang.Task(m.pod) != gang.Task(last.pod) {
			at := slices.IndexFunc(classes, func(other *fit.Class) bool { return other.Key == m.class.Key })
			if at < 0 {
				at, classes = len(classes), append(classes, m.class)
			}
			g.Tasks = append(g.Tasks, placement.Task{Name: gang.Task(m.pod), Class: at, GPUs: m.gpus})
		}
		g.Tasks[len(g.Tasks)-1].Pods++
		last = m
		if m.stage < planned {
			continue
		}
		id, ok := c.tree.ID(m.node)
		if !ok {
			id = placement.None
		}
		g.Placed = append(g.Placed, placement.Member{Rank: rank, Node: id})
	}
	return g, classes
}

// constrain adds what the gang wants of the map, and what it avoids.
func (l *planner) constrain(g *placement.Gang, e *entry) (why string) {
	c, now := &l.plugin.chart, l.plugin.book.now()
	for name, until := range e.avoid {
		if id, ok := c.tree.ID(name); now.After(until) {
			delete(e.avoid, name)
		} else if ok {
			g.Avoid = append(g.Avoid, id)
		}
	}
	if c.fresh || l.plugin.args.TopoMaster == "" {
		g.Slice, g.Require, g.Prefer = e.gang.GroupSize, e.gang.Required, e.gang.Preferred
		return ""
	}
	policy := e.gang.WithoutMap
	if policy == "" {
		policy = l.plugin.args.WithoutMap
	}
	if policy == gang.Wait {
		return "waits for a map of the fabric from topo-master"
	}
	return ""
}

// capacity is the room that nodes have now, in the order of the tree.
func (l *planner) capacity(classes []*fit.Class, pod *corev1.Pod) *placement.Capacity {
	c, b := &l.plugin.chart, l.plugin.book
	out := placement.Capacity{Fit: make([][]int32, len(classes))}
	var counts []int32
	for i, class := range classes {
		counts = l.plugin.table.Count(&fit.Question{
			Class: class, Nodes: l.nodes, Promises: b.promises, Priority: priorityOf(pod), Preempt: l.preempt,
		}, counts)
		out.Fit[i] = make([]int32, c.tree.Len())
		for at, n := range counts {
			if id := c.ids[at]; n > 0 && c.usable(id) {
				out.Fit[i][id] = n
			}
		}
	}
	// Pods compete for GPUs: of nodes that take as many of them the one with the
	// fewest left comes first, and larger requests find the others whole.
	counts = l.plugin.table.Free(&fit.Question{
		Nodes: l.nodes, Promises: b.promises, Priority: priorityOf(pod), Preempt: l.preempt,
	}, corev1.ResourceName(b.domains.GPUResource()), counts)
	out.Free = make([]int32, c.tree.Len())
	for at, n := range counts {
		out.Free[c.ids[at]] = n
	}
	if len(classes) < 2 {
		return &out
	}
	out.Together = func(node int32, pods []int32) bool {
		at := c.at[node]
		if at < 0 {
			return false
		}
		info := l.nodes[at]
		room := fit.RoomOf(info, b.promises[info.Node().Name], priorityOf(pod), nil)
		if l.preempt {
			room.Spare(priorityOf(pod))
		}
		return room.Takes(classes, pods)
	}
	return &out
}

// anybodyLower tells whether preemption could help at all.
func anybodyLower(nodes []framework.NodeInfo, pod *corev1.Pod) bool {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false
	}
	priority := priorityOf(pod)
	for _, info := range nodes {
		for _, other := range info.GetPods() {
			if priorityOf(other.GetPod()) < priority {
				return true
			}
		}
	}
	return false
}
