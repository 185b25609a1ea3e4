// Package planner finds nodes for gangs: from snapshots of gangs, nodes and reservations, and
// from the topology tree, it makes a plan or the reason why it cannot.
//
// It owns the tree with the scheduler's nodes, the search for pods to preempt, the classes of pods
// that are alike, and a cache of how many pods of a class fit on a node. For that it repeats what
// kube-scheduler's filters decide by resources and static rules (taints, required node affinity,
// unschedulable, Ready); the others (volumes, most of inter-pod affinity) run on the nodes of a plan.
// Running the filters themselves is too slow: see docs/contribute/development.md. Gangs of labels and native
// PodGroups are one type here.
// topo/placement decides which place is best and which rank goes where. This package changes no
// gang and calls no API.
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

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Gang is a snapshot of a gang to plan.
type Gang struct {
	Key types.NamespacedName
	// Revision is the gang cache's, which rejects a plan for an older one.
	Revision int
	// Members are at least one, in the order of their ranks.
	Members []Member
	// MinMember is the number of members that must have a node, including the ones that have it
	// already.
	MinMember int
	// Spec has the levels, the slices and the gangs that this one runs with.
	Spec gang.Spec
	// Avoid are nodes that get no member.
	Avoid []string
	// Label is a label of nodes: all members go to nodes with one value of it.
	Label string
}

// Member is a pod of a gang.
type Member struct {
	Pod   *corev1.Pod
	Class *Class
	GPUs  int
	// Node is the member's node, or empty.
	Node string
}

// Reservation returns what a plan keeps for the member.
func (m *Member) Reservation() Reservation {
	return Reservation{
		UID: m.Pod.UID, Priority: schedulehelpers.PodPriority(m.Pod), Amounts: m.Class.Amounts, Claims: m.Class.Claims,
	}
}

// Place has nodes for the members of a gang that need one.
type Place struct {
	// Nodes are in the order of the members: empty for members that have a node, and
	// for those beyond MinMember without room.
	Nodes []string
	// Group and Kind are the name and the kind of the tightest group that holds all members; empty if none does.
	Group, Kind string
}

// Plan is the result for gangs that are planned together.
type Plan struct {
	// Places are in the order of the gangs; nil without room for all of them.
	Places []Place
	// Leaving are pods that must be gone first.
	Leaving []*corev1.Pod
	// Reason explains why the gang does not fit, at least without preemption.
	Reason string
}

// Request is for gangs that are planned together: all of them get nodes, or none.
type Request struct {
	Gangs []Gang
	// Query has the nodes, what is reserved on them, and which pods count as gone.
	Query
	// Tried is the member that the scheduler tries first, before members of lower ranks.
	Tried types.UID
}

// Planner makes plans. It is for one goroutine: that of the scheduling cycles.
type Planner struct {
	topology   *topologyclient.Client
	withoutMap gang.WithoutMap
	gpus       sgpu.GPUs

	forest forest
	table  Table
}

// New returns a planner. withoutMap is for gangs without a preference, gpus are the names of
// whole GPUs.
func New(topology *topologyclient.Client, withoutMap gang.WithoutMap, gpus sgpu.GPUs) *Planner {
	return &Planner{topology: topology, withoutMap: withoutMap, gpus: gpus}
}

// Plan plans the gangs of a request one after another, each beside the places of those
// before.
func (p *Planner) Plan(r *Request) (out Plan) {
	p.update(r.Nodes)
	query := r.Query
	query.Reservations = Reservations{}
	maps.Copy(query.Reservations, r.Reservations)
	for i := range r.Gangs {
		g := &r.Gangs[i]
		place, err := p.plan(g, &query, r.Tried)
		if err != nil && !g.Spec.Alone() {
			err = fmt.Errorf("podgroup %s of its groups: %w", g.Key.Name, err)
		}
		if err != nil {
			return Plan{Reason: err.Error()}
		}
		out.Places = append(out.Places, place)
	}
	return out
}

// plan plans one gang, and adds what its members take to the reservations.
func (p *Planner) plan(g *Gang, query *Query, tried types.UID) (Place, error) {
	if need := max(1, g.MinMember); need > len(g.Members) {
		return Place{}, errors.New(gang.Incomplete(len(g.Members), need))
	}
	if n := g.kinds(); n > maxKinds {
		return Place{}, fmt.Errorf(
			"its pods without a node differ in what they request, select or tolerate: %d kinds, at most %d", n, maxKinds)
	}
	tree := p.forest.of(&g.Spec)
	request, classes := tree.gang(g)
	if err := p.constrain(&request, &g.Spec); err != nil {
		return Place{}, err
	}
	query.Priority = g.Priority()
	room := p.capacity(tree, query, classes)
	search := p.search(tree, g, &request)
	found, err := search.place(room)
	if err != nil {
		return Place{}, err
	}
	found = search.prefer(g, room, found)
	if limits := limitsOf(g, query, tried); limits != nil && !limits.keeps(tree, g, found.Nodes) {
		if found, err = limits.spread(tree, g, &request, search.alike(room, found.Nodes)); err != nil {
			return Place{}, err
		}
	}
	place := Place{Nodes: make([]string, len(g.Members)), Group: found.Group.Name, Kind: p.forest.kind(found.Group.Kind)}
	for rank, id := range found.Nodes {
		if m := &g.Members[rank]; m.Node == "" && id != placement.None {
			node := tree.placement.Name(id)
			place.Nodes[rank] = node
			query.Reservations[node] = append(slices.Clip(query.Reservations[node]), m.Reservation())
		}
	}
	return place, nil
}

// Room returns the tightest group that has room for a gang, without the constraints of its pods on each other.
func (p *Planner) Room(g *Gang, query *Query) (placement.Group, error) {
	p.update(query.Nodes)
	tree := p.forest.of(&g.Spec)
	request, classes := tree.gang(g)
	if err := p.constrain(&request, &g.Spec); err != nil {
		return placement.Group{}, err
	}
	room := p.capacity(tree, query, classes)
	found, err := placement.Place(tree.placement, &request, room)
	return found.Group, err
}

// maxKinds bounds the kinds of members to plan. The time of a plan, in which no other pod is
// scheduled, grows by at least their square. Jobs have one to five, or one for each node.
const maxKinds = 128

// kinds counts the kinds of the members that need a node.
func (g *Gang) kinds() int {
	kinds := map[Key]bool{}
	for i := range g.Members {
		if m := &g.Members[i]; m.Node == "" {
			kinds[m.Class.Key] = true
		}
	}
	return len(kinds)
}

// label returns the label that must have one value on all members' nodes: that of the PodGroup,
// or of a required affinity of the members to each other.
func (g *Gang) label() string { return cmp.Or(g.Label, Together(g.Members[0].Pod)) }

// Priority returns the lowest priority of the members that need a node.
func (g *Gang) Priority() int32 {
	lowest := int32(math.MaxInt32)
	for i := range g.Members {
		if m := &g.Members[i]; m.Node == "" {
			lowest = min(lowest, schedulehelpers.PodPriority(m.Pod))
		}
	}
	return lowest
}

// constrain adds the gang's rules about the topology tree. Without a fresh tree the gang
// waits for one, or is placed without levels and slices. A scheduler that has just started
// waits for its first tree for a while before it places a gang against its rules.
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

// capacity returns how many pods of each class fit on each node of the tree.
func (p *Planner) capacity(t *tree, q *Query, classes []*Class) *placement.Capacity {
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
	// Among nodes that take as many pods the one with the fewest free GPUs comes first, so that
	// larger requests find the others empty. Only the GPUs of the first class with GPUs count.
	gpu := p.gpus[0]
	requests := func(c *Class) bool { return c.Amounts[p.gpus.In(c.Amounts)] > 0 }
	if first := slices.IndexFunc(classes, requests); first >= 0 {
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
		free := q.Free(q.Nodes[at])
		return free.FitsTogether(classes, pods)
	}
	return &out
}

// Capacity holds the numbers of free GPUs.
type Capacity struct {
	// Free counts GPUs on nodes that take pods, Whole those on nodes with all GPUs free;
	// Largest is the most of these that one group of a kind has.
	Free, Whole int64
	Largest     map[string]int
}

// Capacity measures the free capacity.
func (p *Planner) Capacity(nodes []*Node, reserved Reservations) Capacity {
	p.update(nodes)
	t := p.forest.fabric
	var out Capacity
	whole := make([]int32, len(nodes))
	query := Query{Nodes: nodes, Reservations: reserved, Priority: math.MinInt32}
	for _, gpu := range p.gpus {
		for i, free := range p.table.Free(&query, gpu, nil) {
			if free <= 0 || nodes[i].Spec.Unschedulable || !t.usable(t.ids[i]) {
				continue
			}
			out.Free += int64(free)
			if int64(free) == nodes[i].Allocatable[gpu] {
				out.Whole += int64(free)
				whole[i] += free
			}
		}
	}
	out.Largest = p.forest.largest(whole)
	return out
}
