package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/preemption"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

const cycleKey framework.StateKey = Name

// cycle is what PreFilter found out about a pod. Only Reserve changes it.
type cycle struct {
	planner.Single
	gpu corev1.ResourceName // Whole GPUs of the maker that it asks for.
	// member reports that the pod is in a gang of labels; node is the only one that
	// Filter accepts, empty for any.
	member bool
	node   string
	// request is for shares of GPUs, selector for whole ones; nil without.
	request  *sgpu.Request
	selector *sgpu.Selector
	// hcas are as [fit.HCAs] has them.
	hcas fit.Amounts
	// decision is the one on shared GPUs of a pod in a PodGroup's cycle. The framework
	// takes it back and, once all members have a node, reserves for one after another,
	// with a snapshot that does not show what the others got.
	decision *allocation.Allocation
}

// Clone is for preemption, which tries nodes without some pods.
func (c *cycle) Clone() framework.StateData { return c }

func cycleOf(state framework.CycleState) *cycle {
	data, _ := state.Read(cycleKey)
	c, _ := data.(*cycle)
	return c
}

// PreFilter plans for the pod's gang, unless it has a plan, and takes the reservations
// that Filter charges. It skips pods of no gang that request neither shares nor several
// HCAs while there are no reservations.
func (p *Plugin) PreFilter(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
) (*framework.PreFilterResult, *framework.Status) {
	p.controller.Leads.Store(true)
	c, err := p.newCycle(pod)
	if err != nil {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
	}
	switch {
	case p.cache.IsNative(pod):
		if status := p.preFilterPodGroup(ctx, state, pod, c); status != nil {
			return nil, status
		}
	case state.IsPodGroupSchedulingCycle() && p.labeled(pod):
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, errNotNative.Error())
	default:
		p.measure(nodes)
		var rejection string
		plan := func(gangs []planner.Gang, mayPreempt bool) ([]planner.Plan, []*corev1.Pod, string) {
			return p.plan(&planner.Request{Gangs: gangs, Query: fit.Query{Nodes: nodes}, Tried: pod.UID}, mayPreempt)
		}
		c.node, c.member, rejection = p.cache.Place(pod, plan)
		if !c.member && p.labeled(pod) {
			if _, err := gang.Read(pod, p.args.Domains); err != nil {
				rejection = err.Error() // It names no gang.
			}
		}
		if rejection != "" {
			// No victims would make room for the whole gang.
			return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, rejection)
		}
		c.Reservations, c.Asker.First = p.cache.Reservations(), p.cache.RunsInPart(pod)
		if !c.member && len(c.Reservations)+len(c.hcas) == 0 && c.request == nil && c.selector == nil {
			return nil, framework.NewStatus(framework.Skip)
		}
	}
	state.Write(cycleKey, c)
	if c.node == "" {
		return nil, nil
	}
	return &framework.PreFilterResult{NodeNames: sets.New(c.node)}, nil
}

// PreFilterExtensions are none: Filter looks at the node that it is given.
func (*Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

func (p *Plugin) newCycle(pod *corev1.Pod) (*cycle, error) {
	request, err := p.gpus.Request(pod)
	selector, selectorErr := p.gpus.Selector(pod)
	if err = cmp.Or(err, selectorErr); err != nil {
		return nil, err
	}
	c := &cycle{request: request, hcas: p.hcas(pod)}
	c.Asker = fit.Asker{UID: pod.UID, Priority: schedulehelpers.PodPriority(pod), End: fit.EndOf(pod, time.Now())}
	c.Amounts, c.Reservations = fit.Requests(pod, p.args.Ignored...), p.cache.Reservations()
	c.gpu = p.gpus.GPUs().In(c.Amounts)
	if selector != nil && c.Amounts[c.gpu] > 0 {
		c.selector = selector
	}
	return c, nil
}

// Filter accepts a member's own node alone, since nominated nodes are tried whatever
// PreFilter returns, and charges reservations to all other pods.
func (p *Plugin) Filter(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) *framework.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	node := info.Node().Name
	if c.node != "" && c.node != node {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) are not the pod's place in its gang")
	}
	if lacks := fit.LacksHCAs(info.Node(), c.hcas); lacks != "" {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable,
			fmt.Sprintf("node(s) have fewer HCAs of %s than the %d that one container asks for", lacks, c.hcas[lacks]))
	}
	free := fit.FreeOf(info, c.Reservations[node], &c.Asker)
	if free.HasReservations() {
		if lacks := free.Lacks(c.Amounts); lacks != "" {
			return framework.NewStatus(framework.Unschedulable, fmt.Sprintf("node(s) have %s reserved for a gang", lacks))
		}
	}
	if c.selector != nil {
		// No victim would help: which GPUs a pod would leave is not known.
		const code = framework.UnschedulableAndUnresolvable
		switch left, err := c.selector.Left(info); {
		case err != nil:
			return framework.NewStatus(code, "node(s) do not publish which GPUs are free")
		case left-free.Reserved(c.gpu) < c.Amounts[c.gpu]:
			return framework.NewStatus(code, "node(s) have too few free GPUs that the pod accepts")
		}
	}
	if c.request != nil {
		return p.gpus.Filter(c.request, info)
	}
	return nil
}

// PostFilter runs before the scheduler's preemption, which is for clusters without gangs of a
// lower priority: a member's plan has the victims, which are evicted for the whole gang at once.
func (p *Plugin) PostFilter(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	c := cycleOf(state)
	switch {
	case c == nil && !p.labeled(pod): // PreFilter skipped it.
		if c, err := p.newCycle(pod); err == nil {
			return p.preemptor.Single(ctx, state, pod, &c.Single, statuses)
		}
		return nil, framework.NewStatus(framework.Unschedulable)
	case c == nil:
	case !c.member:
		p.cache.Block(pod)
		return p.preemptor.Single(ctx, state, pod, &c.Single, statuses)
	case p.preemptor.LeavesRoom(ctx, state, pod, c.node):
		if p.preemptor.Evict(ctx, pod) {
			return preemption.Nominate(c.node), nil
		}
	default:
		var others []string
		if p.cache.HoldsNone(pod) {
			others, _ = p.rejecting(ctx, state, pod, c)
		}
		p.cache.TurnedAway(pod, c.node, statuses.Get(c.node).Message(), others...)
	}
	var result *framework.PostFilterResult
	if pod.Status.NominatedNodeName != "" {
		result = preemption.Nominate("") // An earlier plan's.
	}
	return result, framework.NewStatus(framework.UnschedulableAndUnresolvable)
}

// rejecting are the nodes that reject a pod for what no plan sees: its volumes, the affinity of
// other pods. A plan per node would find them one by one. What the skew lets in depends on
// the members that come before, and room on what others leave: these are planned. The message
// is that of the last.
func (p *Plugin) rejecting(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, c *cycle,
) (nodes []string, message string) {
	all, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, ""
	}
	anywhere, trial := *c, state.Clone()
	anywhere.node = ""
	trial.Write(cycleKey, &anywhere)
	for _, info := range all {
		status := p.handle.RunFilterPlugins(ctx, trial, pod, info)
		if !status.IsRejected() || slices.Contains([]string{Name, "NodeResourcesFit", "PodTopologySpread"}, status.Plugin()) {
			continue
		}
		nodes, message = append(nodes, info.Node().Name), status.Message()
	}
	return nodes, message
}

// PreScore skips pods without GPUs, members of gangs, which have their node, and pods for which no
// node is better than another, as for those that take all GPUs of equal nodes.
func (p *Plugin) PreScore(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
) *framework.Status {
	c := cycleOf(state)
	if c == nil { // PreFilter skipped it.
		c = &cycle{Single: planner.Single{Amounts: fit.Requests(pod)}}
		c.gpu = p.gpus.GPUs().In(c.Amounts)
	}
	gpus, weights := c.Amounts[c.gpu], p.args.GPUAware
	if c.node != "" || c.request == nil &&
		(gpus == 0 || p.gpus.NoneIsBetter(ctx, p.handle.Parallelizer(), c.gpu, gpus, weights, nodes)) {
		return framework.NewStatus(framework.Skip)
	}
	state.Write(cycleKey, c)
	p.scored.last.Store(&scoredCycle{state, c})
	return nil
}

// scored is the cycle that passed PreScore last: Score is called for hundreds of nodes after
// it, and to find the cycle by its key costs an allocation each time.
type scored struct{ last atomic.Pointer[scoredCycle] }

type scoredCycle struct {
	state framework.CycleState
	cycle *cycle
}

func (s *scored) of(state framework.CycleState) *cycle {
	if last := s.last.Load(); last != nil && last.state == state {
		return last.cycle
	}
	return cycleOf(state)
}

// Score is by the node's GPUs.
func (p *Plugin) Score(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) (int64, *framework.Status) {
	c := p.scored.of(state)
	if c.request != nil {
		return p.gpus.ScoreShares(c.request, info), nil
	}
	return p.gpus.ScoreGPUs(c.gpu, c.Amounts[c.gpu], p.args.GPUAware, info), nil
}

// ScoreExtensions brings scores to the framework's scale.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return p }

// NormalizeScore is for the framework.
func (*Plugin) NormalizeScore(
	_ context.Context, _ framework.CycleState, _ *corev1.Pod, scores framework.NodeScoreList,
) *framework.Status {
	sgpu.Normalize(scores)
	return nil
}

// plan plans gangs beside all reservations: with pods of a lower priority gone if it
// may, and there is no room else. leaving are those that must leave first. It is for one
// goroutine: that of the scheduling cycles.
func (p *Plugin) plan(
	r *planner.Request, mayPreempt bool,
) (found []planner.Plan, leaving []*corev1.Pod, reason string) {
	begin, result := time.Now(), "placed"
	r.Reservations = p.cache.Reservations(r.Gangs...)
	if found, reason = p.planner.Plan(r); reason != "" {
		result = "rejected"
	}
	p.cache.Metrics.Plans.WithLabelValues(result).Observe(time.Since(begin).Seconds())
	if reason != "" && mayPreempt {
		found, leaving = p.preemptor.Plan(r)
	}
	if found == nil && mayPreempt {
		advance := p.planner.Advance(r, time.Now())
		p.cache.Reserve(r.Gangs, advance)
		if !advance.Start.IsZero() {
			reason = fmt.Sprintf("room is reserved from %s: %s", advance.Start.UTC().Format(time.RFC3339), reason)
		}
	}
	return found, leaving, reason
}

// capacityEvery is the age from which on the free capacity is taken again.
const capacityEvery = 10 * time.Second

// measure sets the metrics of the free capacity, unless they are of now.
func (p *Plugin) measure(nodes []framework.NodeInfo) {
	if time.Since(p.measured) < capacityEvery {
		return
	}
	p.measured = time.Now()
	free, m := p.planner.Capacity(nodes, p.cache.Reservations()), p.cache.Metrics
	m.FreeGPUs.WithLabelValues().Set(float64(free.Free))
	m.WholeGPUs.WithLabelValues().Set(float64(free.Whole))
	m.LargestGang.Reset()
	for kind, gpus := range free.Largest {
		m.LargestGang.WithLabelValues(kind).Set(float64(gpus))
	}
}
