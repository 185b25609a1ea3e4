// Package planner finds nodes for gangs: from snapshots of gangs, of nodes and of
// reservations, and from the topology tree, it makes plans, or a reason why there
// is none.
//
// It owns the tree with the nodes that the scheduler has, and a cache of what fits
// where. Gangs of labels and native PodGroups are one value here. What a good place
// is and which rank goes where is decided by topo/placement. It changes no gang and
// calls no API.
package planner

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Gang is a snapshot of a gang to plan.
type Gang struct {
	Key types.NamespacedName
	// Revision is the gang cache's, which rejects a plan for an older one.
	Revision int
	// Members are in the order of their ranks; there is one at least.
	Members []Member
	// MinMember is how many must have a node, those that have one included.
	MinMember int
	// Spec has the levels, the slices and the gangs that this one runs with.
	Spec gang.Spec
	// Avoid are nodes that get no member.
	Avoid []string
	// Label is a label of nodes: all members go to nodes with one value of it.
	Label string
	// Due reports that room is to be reserved for the gang in advance, or again; Advance
	// is what is reserved.
	Due     bool
	Advance Advance
}

// Member is a pod of a gang.
type Member struct {
	Pod   *corev1.Pod
	Class *fit.Class
	GPUs  int
	// Node is the one that it has; empty for none.
	Node string
}

// Reservation is what a plan keeps for the member.
func (m *Member) Reservation() fit.Reservation {
	return fit.Reservation{UID: m.Pod.UID, Priority: schedulehelpers.PodPriority(m.Pod), Amounts: m.Class.Amounts}
}

// Plan has a node for each member of a gang that had none.
type Plan struct {
	// Nodes are in the order of the members: empty for members that have a node, and
	// for those beyond MinMember for which there is no room.
	Nodes []string
	// Kind is that of the tightest group that holds all members.
	Kind string
}

// Request is for gangs that are planned together: all of them get a plan, or none.
type Request struct {
	Gangs []Gang
	// Query has the nodes, what is reserved on them, and which pods count as gone.
	fit.Query
	// Tried is the member that the scheduler tries first, before those of lower ranks.
	Tried types.UID
}

// Planner makes plans. It is for one goroutine: that of the scheduling cycles.
type Planner struct {
	topology   *topologyclient.Client
	withoutMap gang.WithoutMap
	gpus       sgpu.GPUs

	forest forest
	table  fit.Table
}

// New returns a planner. withoutMap is for gangs that have no preference, gpus are the
// names of whole GPUs.
func New(topology *topologyclient.Client, withoutMap gang.WithoutMap, gpus sgpu.GPUs) *Planner {
	return &Planner{topology: topology, withoutMap: withoutMap, gpus: gpus}
}

// Plan plans the gangs of a request one after another, each beside the plans of
// those before. The reason is empty if all have one.
func (p *Planner) Plan(r *Request) (plans []Plan, reason string) {
	p.update(r.Nodes)
	query := r.Query
	query.Reservations = fit.Reservations{}
	maps.Copy(query.Reservations, r.Reservations)
	for i := range r.Gangs {
		g := &r.Gangs[i]
		plan, err := p.plan(g, &query, r.Tried)
		if err != nil && !g.Spec.Alone() {
			err = fmt.Errorf("podgroup %s of its groups: %w", g.Key.Name, err)
		}
		if err != nil {
			return nil, err.Error()
		}
		plans = append(plans, plan)
	}
	return plans, ""
}

// plan plans one gang, and adds what the plan takes to the reservations.
func (p *Planner) plan(g *Gang, query *fit.Query, tried types.UID) (Plan, error) {
	if need := max(1, g.MinMember); need > len(g.Members) {
		return Plan{}, fmt.Errorf("%d of %d pods exist", len(g.Members), need)
	}
	if n := g.kinds(); n > maxKinds {
		return Plan{}, fmt.Errorf(
			"its pods without a node differ in what they request, select or tolerate: %d kinds, at most %d", n, maxKinds)
	}
	tree := p.forest.of(&g.Spec)
	request, classes := tree.gang(g)
	if err := p.constrain(&request, &g.Spec); err != nil {
		return Plan{}, err
	}
	query.Priority, query.End = g.priority(), g.end(time.Now())
	query.First = slices.ContainsFunc(g.Members, func(m Member) bool { return m.Pod.Spec.NodeName != "" })
	room := p.capacity(tree, query, classes)
	search := tree.search(g, query.Nodes, &request)
	found, err := search.place(room)
	if err != nil {
		return Plan{}, err
	}
	found = search.prefer(g, room, found)
	if limits := limitsOf(g, query, tried); limits != nil && !limits.keeps(tree, g, found.Nodes) {
		if search.label != "" {
			room = search.alike(room, found.Nodes)
		}
		if found, err = limits.spread(tree, g, &request, room); err != nil {
			return Plan{}, err
		}
	}
	plan := Plan{Nodes: make([]string, len(g.Members)), Kind: p.forest.kind(found.Group.Kind)}
	for rank, id := range found.Nodes {
		if m := &g.Members[rank]; m.Node == "" && id != placement.None {
			node := tree.placement.Name(id)
			plan.Nodes[rank] = node
			query.Reservations[node] = append(slices.Clip(query.Reservations[node]), m.Reservation())
		}
	}
	return plan, nil
}

// Room is the tightest group that has room for a gang now, whatever its pods ask of each other.
func (p *Planner) Room(g *Gang, nodes []framework.NodeInfo) (placement.Group, error) {
	p.update(nodes)
	tree := p.forest.of(&g.Spec)
	request, classes := tree.gang(g)
	if err := p.constrain(&request, &g.Spec); err != nil {
		return placement.Group{}, err
	}
	room := p.capacity(tree, &fit.Query{Nodes: nodes}, classes)
	found, err := placement.Place(tree.placement, &request, room)
	return found.Group, err
}

// maxKinds bounds the kinds of members to plan: a plan takes time by their square and more, in
// which no other pod is scheduled. Jobs have one to five, or one for each node.
const maxKinds = 128

// kinds are those of the members that need a node.
func (g *Gang) kinds() int {
	kinds := map[fit.Key]bool{}
	for i := range g.Members {
		if m := &g.Members[i]; m.Node == "" {
			kinds[m.Class.Key] = true
		}
	}
	return len(kinds)
}

// label is the one of which all members must have one value: that of the PodGroup, or of a
// required affinity of the members to each other.
func (g *Gang) label() string { return cmp.Or(g.Label, fit.Together(g.Members[0].Pod)) }

// priority is the lowest of the members that need a node: what runs may have another.
func (g *Gang) priority() int32 {
	lowest := int32(math.MaxInt32)
	for i := range g.Members {
		if m := &g.Members[i]; m.Node == "" {
			lowest = min(lowest, schedulehelpers.PodPriority(m.Pod))
		}
	}
	return lowest
}

// end is when all members would be gone that began now; zero if one does not state that.
func (g *Gang) end(now time.Time) (last time.Time) {
	for i := range g.Members {
		end := fit.EndOf(g.Members[i].Pod, now)
		if end.IsZero() {
			return end
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// constrain adds what the gang requires of the topology tree. Without a fresh tree
// it waits for one, or is placed without levels and slices. A scheduler that has just
// started waits for its first tree, before it places a gang against its rules for good.
func (p *Planner) constrain(request *placement.Gang, spec *gang.Spec) error {
	if p.forest.fresh || !p.topology.Configured() {
		request.Slice, request.Require, request.Prefer = spec.GroupSize, spec.Required, spec.Preferred
		return nil
	}
	rules := spec.GroupSize > 0 || spec.Required != ""
	if cmp.Or(spec.WithoutMap, p.withoutMap) == gang.Wait ||
		rules && spec.WithoutMap == "" && p.topology.Awaited(time.Now()) {
		return errors.New("waits for a topology tree from topo-master")
	}
	return nil
}

// capacity is how many pods of each class fit on each node of the tree.
func (p *Planner) capacity(t *tree, q *fit.Query, classes []*fit.Class) *placement.Capacity {
	out := placement.Capacity{Fit: make([][]int32, len(classes)), Free: make([]int32, t.placement.Len())}
	var counts []int32
	for i, class := range classes {
		counts = p.table.Count(q, class, counts)
		out.Fit[i] = make([]int32, t.placement.Len())
		for at, n := range counts {
			if id := t.ids[at]; n > 0 && t.usable(id) {
				out.Fit[i][id] = n
			}
		}
	}
	// Pods compete for GPUs: of nodes that take as many pods the one with the fewest
	// free GPUs comes first, and larger requests find the others empty. They are those of the
	// first class that asks for any.
	gpu := p.gpus[0]
	asks := func(c *fit.Class) bool { return c.Amounts[p.gpus.In(c.Amounts)] > 0 }
	if first := slices.IndexFunc(classes, asks); first >= 0 {
		gpu = p.gpus.In(classes[first].Amounts)
	}
	counts = p.table.Free(q, gpu, counts)
	for at, n := range counts {
		out.Free[t.ids[at]] = n
	}
	if len(classes) < 2 {
		return &out
	}
	out.Together = func(node int32, pods []int32) bool {
		at := t.at[node]
		if at < 0 {
			return false
		}
		info := q.Nodes[at]
		free := fit.FreeOf(info, q.Reservations[info.Node().Name], &q.Asker)
		return free.FitsTogether(classes, pods)
	}
	return &out
}

// Capacity is what of the GPUs is free.
type Capacity struct {
	// Free are those on nodes that take pods, Whole those of them on nodes of which all
	// are free, Largest how many of these one group has at most, by its kind.
	Free, Whole int64
	Largest     map[string]int
}

// Capacity measures it as the nodes are now.
func (p *Planner) Capacity(nodes []framework.NodeInfo, reserved fit.Reservations) Capacity {
	p.update(nodes)
	t := p.forest.fabric
	var out Capacity
	whole := make([]int32, len(nodes))
	query := fit.Query{Nodes: nodes, Reservations: reserved, Asker: fit.Asker{Priority: math.MinInt32}}
	for _, gpu := range p.gpus {
		for i, free := range p.table.Free(&query, gpu, nil) {
			if free <= 0 || nodes[i].Node().Spec.Unschedulable || !t.usable(t.ids[i]) {
				continue
			}
			out.Free += int64(free)
			if int64(free) == nodes[i].GetAllocatable().GetScalarResources()[gpu] {
				out.Whole += int64(free)
				whole[i] += free
			}
		}
	}
	out.Largest = p.forest.largest(whole)
	return out
}
