package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

const cycleKey framework.StateKey = Name

// cycle has what PreFilter learned about a pod. Only PreScore and Reserve change it.
type cycle struct {
	// Query has the reservations that Filter charges, and Amounts holds the pod's requests.
	planner.Query
	Amounts planner.Amounts
	gpu     corev1.ResourceName // The resource of the whole GPUs that it requests.
	// Snapshot is of a pod in a gang of labels. Its Node, also of a member of a native PodGroup, is the
	// only one that Filter accepts; empty for any.
	gangcache.Snapshot
	// request is for shares of GPUs, selector for whole GPUs; nil without.
	request  *sgpu.Request
	selector *sgpu.Selector
	// hcas are the result of [planner.HCAs].
	hcas planner.Amounts
	// claims are of a pod of no gang, while gangs have reservations; nil without any.
	claims *claims.Demand
	// decision has the shared GPUs of a pod in a PodGroup's cycle. The framework unreserves
	// them and, once all members have a node, reserves for one after another, with a snapshot
	// that lacks what the others got.
	decision *allocation.Allocation
	// scores has the score of each node by its name.
	scores map[string]int64
	// learned reports that the pod's request is among the demand.
	learned bool
}

// Clone is for preemption, which tries nodes without some pods.
func (c *cycle) Clone() framework.StateData { return c }

func cycleOf(state framework.CycleState) *cycle {
	data, _ := state.Read(cycleKey)
	c, _ := data.(*cycle)
	return c
}

// PreFilter plans for the pod's gang, unless it has a plan, and takes the reservations that Filter
// charges. Without reservations it skips pods without a gang that request neither shares nor
// several HCAs.
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
		p.keepSpares(nodes)
		c.Snapshot = p.place(ctx, pod, nodes)
		if !c.Member && p.labeled(pod) {
			if _, err := gang.Read(pod, p.args.Domains); err != nil {
				c.Rejection = err.Error() // It names no gang.
			}
		}
		if c.Rejection != "" {
			// No victims would make room for the whole gang.
			return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, c.Rejection)
		}
		c.Reservations = p.cache.ReservationsFor(pod, false)
		p.claimAlone(pod, c)
		if !c.Member && len(c.Reservations)+len(c.hcas) == 0 && c.request == nil && c.selector == nil {
			return nil, framework.NewStatus(framework.Skip)
		}
	}
	state.Write(cycleKey, c)
	if c.Node == "" {
		return nil, nil
	}
	return &framework.PreFilterResult{NodeNames: sets.New(c.Node)}, nil
}

// PreFilterExtensions returns nil: Filter needs only the node that it is given.
func (*Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

func (p *Plugin) newCycle(pod *corev1.Pod) (*cycle, error) {
	request, err := p.gpus.Request(pod)
	selector, selectorErr := p.gpus.Selector(pod)
	if err = cmp.Or(err, selectorErr); err != nil {
		return nil, err
	}
	c := &cycle{request: request, hcas: p.hcas(pod)}
	c.UID, c.Priority = pod.UID, schedulehelpers.PodPriority(pod)
	c.Amounts, c.Reservations = planner.Requests(pod, p.args.Ignored...), p.cache.ReservationsFor(pod, false)
	c.gpu = p.gpus.GPUs().In(c.Amounts)
	if selector != nil && c.Amounts[c.gpu] > 0 {
		c.selector = selector
	}
	return c, nil
}

// claimAlone reads the claims of a pod of no gang, if gangs have reservations.
func (p *Plugin) claimAlone(pod *corev1.Pod, c *cycle) {
	dra := p.handle.SharedDRAManager()
	if c.Member || len(c.Reservations)*len(pod.Spec.ResourceClaims) == 0 || dra == nil {
		return
	}
	p.readClaims()
	// DynamicResources reports errors.
	if demands, err := p.devices.Demands(dra.ResourceClaims(), []*corev1.Pod{pod}, []bool{false}); err == nil {
		c.claims = demands[0]
	}
}

// Filter accepts only the member's own node, since nominated nodes are tried whatever PreFilter
// returns, and charges reservations to all other pods.
func (p *Plugin) Filter(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) *framework.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	node := info.Node().Name
	if c.Node != "" && c.Node != node {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) are not the pod's place in its gang")
	}
	if lacks := planner.LacksHCAs(info.Node(), c.hcas); lacks != "" {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable,
			fmt.Sprintf("node(s) have fewer HCAs of %s than the %d that one container asks for", lacks, c.hcas[lacks]))
	}
	var free planner.Free
	if len(c.Reservations[node]) > 0 {
		n := nodeOf(info)
		n.Claims = p.devices.Of(node)
		free = c.Free(n)
	}
	if lacks := c.reserved(&free); lacks != "" {
		return framework.NewStatus(framework.Unschedulable, lacks)
	}
	if c.selector != nil {
		// No victim would help, since it is not known which GPUs a pod would leave.
		const code = framework.UnschedulableAndUnresolvable
		switch left, err := c.selector.Left(info.Node(), info.GetRequested().GetScalarResources()[c.gpu]); {
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

// reserved returns what reservations keep from a pod on a node; empty for nothing.
func (c *cycle) reserved(free *planner.Free) string {
	if !free.HasReservations() {
		return ""
	}
	switch lacks := free.Lacks(c.Amounts); {
	case free.Waiting != nil && (free.Reserved(lacks) > 0 || c.request != nil || c.claims != nil):
		return fmt.Sprintf("node(s) reserved for %s", free.Waiting)
	case free.Waiting == nil && lacks != "":
		return fmt.Sprintf("node(s) have %s reserved for a gang", lacks)
	case c.claims != nil && !free.Takes(c.claims):
		return "node(s) have devices reserved for a gang"
	}
	return ""
}

// PostFilter runs before kube-scheduler's preemption. A member's plan has the victims, which are
// evicted for the whole gang at once.
func (p *Plugin) PostFilter(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	c := cycleOf(state)
	switch {
	case c == nil && !p.labeled(pod): // PreFilter skipped it.
		return p.preemptForPod(ctx, state, pod, statuses)
	case c == nil:
	case !c.Member:
		p.cache.Block(pod)
		return p.preemptForPod(ctx, state, pod, statuses)
	case p.leavesRoom(ctx, state, pod, c):
		if p.evictVictims(ctx, pod) {
			return nominate(c.Node), nil
		}
	default:
		var others []string
		if c.First {
			others, _ = p.rejecting(ctx, state, pod, c)
		}
		p.cache.TurnedAway(pod, c.Node, statuses.Get(c.Node).Message(), others...)
	}
	var result *framework.PostFilterResult
	if pod.Status.NominatedNodeName != "" {
		result = nominate("") // An earlier plan's.
	}
	return result, framework.NewStatus(framework.UnschedulableAndUnresolvable)
}

// rejecting returns the nodes that reject a pod for reasons unknown to planner: volumes, the
// affinity of other pods. Plans alone would find them one by one. planner knows room and skew,
// which depend on the other members. The message is the last node's.
func (p *Plugin) rejecting(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, c *cycle,
) (nodes []string, message string) {
	all, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, ""
	}
	anywhere, trial := *c, state.Clone()
	anywhere.Node = ""
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

// maxSnapshots bounds the immediate new plans of a gang that changes while it is planned.
const maxSnapshots = 3

// place returns a member's node: by an earlier plan, or by a plan that is made now for all gangs
// that it runs with.
func (p *Plugin) place(ctx context.Context, pod *corev1.Pod, infos []framework.NodeInfo) gangcache.Snapshot {
	for range maxSnapshots {
		snapshot := p.cache.Snapshot(pod)
		current := true
		for i, unit := range snapshot.Units {
			request := planner.Request{Gangs: unit, Query: planner.Query{Nodes: p.nodesOf(infos)}, Tried: pod.UID}
			last := i == len(snapshot.Units)-1
			plan := p.plan(ctx, &request, last)
			if last && plan.Places == nil {
				p.hold(ctx, pod, &request)
			}
			snapshot, current = p.cache.Commit(pod, unit, &plan)
		}
		if current {
			return snapshot
		}
	}
	return gangcache.Snapshot{Member: true, Rejection: "the gang changes faster than it is planned"}
}

// keepSpares chooses the idle nodes that are kept for the repair of running gangs.
func (p *Plugin) keepSpares(infos []framework.NodeInfo) {
	if p.args.Spares != (intstr.IntOrString{}) {
		p.cache.SetSpares(p.planner.Spares(p.nodesOf(infos), p.cache.Reservations(), p.args.Spares))
	}
}

// hold reserves nodes for gangs without room, if these are the first that have waited for so long.
func (p *Plugin) hold(ctx context.Context, pod *corev1.Pod, r *planner.Request) {
	waiting := p.cache.Waiting(pod)
	if waiting == nil {
		return
	}
	nodes := p.planner.Hold(r, p.cache.GangOf(), waiting)
	if p.cache.Hold(pod, r.Gangs, waiting, nodes) {
		p.log.InfoContext(ctx, "nodes are reserved for a gang that has waited",
			"podgroup", waiting.Gang, "waited", waiting.For, "nodes", len(nodes))
	}
}

// plan plans gangs beside all reservations. If they do not fit, and may preempt, it plans without
// pods of a lower priority.
func (p *Plugin) plan(ctx context.Context, r *planner.Request, mayPreempt bool) planner.Plan {
	begin, result := time.Now(), "placed"
	for i := range r.Gangs {
		if err := p.claim(&r.Gangs[i]); err != nil {
			return planner.Plan{Reason: err.Error()}
		}
	}
	if r.Reservations == nil {
		back := p.suspects.Ended(r.Gangs[0].Key.String(), time.Now())
		r.Reservations = p.cache.ReservationsFor(r.Gangs[0].Members[0].Pod, back)
	}
	plan := p.planAround(r)
	if plan.Places == nil {
		result = "rejected"
	}
	p.observe(result, begin)
	if plan.Places == nil && mayPreempt {
		if preempting := p.planWithout(ctx, r); preempting.Places != nil {
			preempting.Reason = plan.Reason
			return preempting
		}
	}
	return plan
}

// planAround plans without nodes on which gangs failed or with bad cables, and rather with those whose cables were
// measured, if others have room.
func (p *Plugin) planAround(r *planner.Request) planner.Plan {
	var suspects []string
	sure := 0
	for i := range r.Gangs {
		nodes, certain := p.suspects.Avoid(r.Gangs[i].Key.String(), time.Now())
		suspects = append(suspects, nodes...)
		sure = cmp.Or(sure, certain)
	}
	return p.planner.PlanAround(r, append(suspects, p.suspects.Untested()...), sure)
}

// observe adds the time of a plan or a search to the metric.
func (p *Plugin) observe(result string, begin time.Time) {
	p.cache.Metrics.Plans.WithLabelValues(result).Observe(time.Since(begin).Seconds())
}

// capacityEvery is the interval between measurements of the free capacity.
const capacityEvery = 10 * time.Second

// measure sets the metrics of the free capacity from time to time.
func (p *Plugin) measure(infos []framework.NodeInfo) {
	if time.Since(p.measured) < capacityEvery {
		return
	}
	p.measured = time.Now()
	free, m := p.planner.Capacity(p.nodesOf(infos), p.cache.Reservations()), p.cache.Metrics
	m.FreeGPUs.WithLabelValues().Set(float64(free.Free))
	m.WholeGPUs.WithLabelValues().Set(float64(free.Whole))
	m.LargestGang.Reset()
	for kind, gpus := range free.Largest {
		m.LargestGang.WithLabelValues(kind).Set(float64(gpus))
	}
}
