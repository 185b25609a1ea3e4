// Package plugin is a plugin of kube-scheduler that places gangs by the topology
// tree, and shares of GPUs.
//
// It owns the framework's interfaces (k8s.io/kube-scheduler/framework) and the order
// of a scheduling cycle; each method calls the values that decide. Gangs are in
// gangcache, plans are made by planner, GPUs of nodes are in sgpu, and controller
// does what a cycle must not wait for.
//
// # A gang of labels
//
// PreEnqueue keeps members out of the queue until there are as many as the gang
// needs. The first that is tried plans for all (PreFilter): every member has a node
// then, or the gang is rejected with a reason. A plan is a reservation, which Filter
// charges to all other pods until its members are there or its deadline passes.
// Filter accepts that node alone. Permit holds the members until enough of them are
// reserved, of this gang and of all gangs of its groups; then all are bound. A member
// that goes away before that, or the deadline, frees everything at once.
//
// # A native PodGroup
//
// With the feature gate GenericWorkload, Kubernetes keeps the members of a PodGroup
// of scheduling.k8s.io together in one cycle, and asks where they may go
// (GeneratePlacements). The answer is a short list, the tightest group first; then
// PreFilter gives every member its node of the plan, and Filter accepts that alone.
// If a node rejects a member, the next placement on the list is planned around it.
// The gang cache does not have these gangs: reservations of others count, and none
// is made.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/controller"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/metrics"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Name is the plugin's in the scheduler's configuration.
const Name = "Heddle"

var (
	_ framework.PreEnqueuePlugin        = (*Plugin)(nil)
	_ framework.PreFilterPlugin         = (*Plugin)(nil)
	_ framework.FilterPlugin            = (*Plugin)(nil)
	_ framework.PostFilterPlugin        = (*Plugin)(nil)
	_ framework.PreScorePlugin          = (*Plugin)(nil)
	_ framework.ScorePlugin             = (*Plugin)(nil)
	_ framework.ReservePlugin           = (*Plugin)(nil)
	_ framework.PermitPlugin            = (*Plugin)(nil)
	_ framework.BindPlugin              = (*Plugin)(nil)
	_ framework.PostBindPlugin          = (*Plugin)(nil)
	_ framework.EnqueueExtensions       = (*Plugin)(nil)
	_ framework.SignPlugin              = (*Plugin)(nil)
	_ framework.PlacementGeneratePlugin = (*Plugin)(nil)
)

// Process is what the scheduler's process has beside the framework.
type Process struct {
	// Registerer gets the plugin's metrics; nil for none.
	Registerer prometheus.Registerer
	// Won is whether this process has won its leader election; known is false as long
	// as there is none. With nil it always has.
	Won func() (leads, known bool)
}

// Plugin places gangs and shares of GPUs.
type Plugin struct {
	args       Args
	handle     framework.Handle
	log        *slog.Logger
	cache      *gangcache.Cache
	planner    *planner.Planner
	gpus       *sgpu.Scheduler
	metrics    *metrics.Metrics
	controller *controller.Controller

	stop context.CancelFunc
	done sync.WaitGroup
	// warned is for the warning that the scheduler does not ask for placements.
	warned sync.Once
}

// Factory makes the plugin, in the form that kube-scheduler registers.
func Factory(
	log *slog.Logger, process Process,
) func(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return func(ctx context.Context, object runtime.Object, handle framework.Handle) (framework.Plugin, error) {
		args, err := readArgs(object)
		if err != nil {
			return nil, err
		}
		return New(ctx, args, handle, log, process)
	}
}

// New makes the plugin and starts its controller; Close ends that.
func New(ctx context.Context, args Args, handle framework.Handle, log *slog.Logger, process Process) (*Plugin, error) {
	topology := topologyclient.New(topologyclient.Options{
		URL: args.TopoMaster, CAFile: args.CAFile, TokenFile: args.TokenFile,
		Interval: args.Interval.Duration, MaxAge: args.MaxAge.Duration, Log: log,
	})
	p := &Plugin{
		args: args, handle: handle, log: log,
		gpus: sgpu.New(args.nodeConfig(), args.Placement), metrics: metrics.New(),
	}
	p.planner = planner.New(topology, args.WithoutMap, p.gpu(), p.metrics, log)
	p.cache = gangcache.New(gangcache.Options{
		Domains: args.Domains, Ignored: args.Ignored, Scheduler: handle.ProfileName(), Native: args.GenericWorkload,
		GPUs: p.gpus, Metrics: p.metrics,
	})
	var err error
	p.controller, err = controller.New(controller.Options{
		Plugin: Name, Handle: handle, Cache: p.cache, GPUs: p.gpus, Topology: topology, Metrics: p.metrics,
		PodGroups: args.PodGroups, Won: process.Won, Log: log,
	})
	if err != nil {
		return nil, err
	}
	if process.Registerer != nil {
		if err := p.metrics.Register(process.Registerer); err != nil {
			log.ErrorContext(ctx, "no metrics: only one profile may have the plugin", "err", err)
		}
	}
	ctx, p.stop = context.WithCancel(ctx)
	p.done.Go(func() { p.controller.Run(ctx) })
	return p, nil
}

// Name is the plugin's.
func (*Plugin) Name() string { return Name }

// Close ends what runs in the background; the framework calls it.
func (p *Plugin) Close() error {
	p.stop()
	p.done.Wait()
	return nil
}

func (p *Plugin) gpu() corev1.ResourceName { return corev1.ResourceName(p.args.Domains.GPUResource()) }

// PreEnqueue keeps a member out of the queue until its gang has as many as it needs.
// It runs under the queue's lock.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if p.cache.IsNative(pod) || !gang.Mentions(pod) {
		return nil
	}
	added, reason := p.cache.Admit(pod)
	// The queue may still have a pod that is deleted, and no event would follow.
	if added && !p.exists(pod) {
		p.cache.DeletePod(pod)
		reason = "the pod is gone"
	}
	if reason != "" {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, reason)
	}
	return nil
}

func (p *Plugin) exists(pod *corev1.Pod) bool {
	now, err := p.handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace).Get(pod.Name)
	return err == nil && now.UID == pod.UID
}

const (
	cycleKey framework.StateKey = Name
	scoreKey framework.StateKey = Name + "/score"
)

// cycle is what PreFilter found out about a pod. Only Reserve changes it.
type cycle struct {
	uid          types.UID
	priority     int32
	amounts      []fit.Amount
	reservations fit.Reservations
	// member reports that the pod is in a gang of labels; node is the only one that
	// Filter accepts, empty for any.
	member bool
	node   string
	// request is for shares of GPUs, selector for whole ones; nil without.
	request  *sgpu.Request
	selector *sgpu.Selector
	// decision is the one on shared GPUs of a pod in a PodGroup's cycle. The framework
	// takes it back and, once all members have a node, reserves for one after another,
	// with a snapshot that does not show what the others got.
	decision *allocation.Allocation
}

// Clone is for preemption, which tries nodes without some pods.
func (c *cycle) Clone() framework.StateData { return c }

func cycleOf(state framework.CycleState) *cycle {
	data, err := state.Read(cycleKey)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

// PreFilter plans for the pod's gang, unless it has a plan, and takes the reservations
// that Filter charges. It skips pods of no gang that request no shares while there are
// no reservations.
func (p *Plugin) PreFilter(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
) (*framework.PreFilterResult, *framework.Status) {
	p.controller.Scheduling()
	c, err := p.newCycle(pod)
	if err != nil {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
	}
	switch {
	case p.cache.IsNative(pod):
		if status := p.preFilterNative(ctx, state, pod, nodes, c); status != nil {
			return nil, status
		}
	case state.IsPodGroupSchedulingCycle() && p.cache.Has(pod):
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, errNotNative.Error())
	default:
		if p.metrics.CapacityDue(time.Now()) {
			p.planner.MeasureCapacity(ctx, nodes, p.cache.Reservations())
		}
		var rejection string
		if c.node, c.member, rejection = p.place(ctx, pod, nodes); rejection != "" {
			// No victim would make room for the whole gang.
			return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, rejection)
		}
		c.reservations = p.cache.Reservations()
		if !c.member && len(c.reservations) == 0 && c.request == nil && c.selector == nil {
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
	c := &cycle{
		uid: pod.UID, priority: schedulehelpers.PodPriority(pod), amounts: fit.Requests(pod, p.args.Ignored...),
		reservations: p.cache.Reservations(), request: request,
	}
	if selector != nil && fit.AmountOf(c.amounts, p.gpu()) > 0 {
		c.selector = selector
	}
	return c, nil
}

// place finds the node of a member, planning its gang if needed.
func (p *Plugin) place(
	ctx context.Context, pod *corev1.Pod, nodes []framework.NodeInfo,
) (node string, member bool, rejection string) {
	for range 3 {
		attempt, ok := p.cache.Attempt(pod)
		switch {
		case !ok:
			if _, err := gang.Read(pod, p.args.Domains); gang.Mentions(pod) && err != nil && !errors.Is(err, gang.ErrNoGang) {
				return "", false, err.Error()
			}
			return "", false, ""
		case attempt.Node != "" || attempt.Rejection != "":
			return attempt.Node, true, attempt.Rejection
		}
		for _, unit := range attempt.Interrupted {
			// Without room its leader tries again when something changes.
			p.plan(ctx, unit, nodes, false, pod)
		}
		reason, current := p.plan(ctx, attempt.Unit, nodes, false, pod)
		if reason != "" && planner.CanPreempt(pod, nodes) {
			if preempted, ok := p.plan(ctx, attempt.Unit, nodes, true, pod); preempted == "" {
				reason, current = "", ok
			}
		}
		if current {
			node, rejection = p.cache.Conclude(pod, reason)
			return node, true, rejection
		}
	}
	return "", true, "the gang changes faster than it is planned"
}

// plan plans gangs together and commits the plans; current is false if one of them
// changed meanwhile.
func (p *Plugin) plan(
	ctx context.Context, unit []planner.Gang, nodes []framework.NodeInfo, preempt bool, pod *corev1.Pod,
) (reason string, current bool) {
	plans, reason := p.planner.Plan(ctx, &planner.Request{
		Gangs: unit, Nodes: nodes, Reservations: p.cache.Reservations(), Preempt: preempt,
	})
	return reason, reason != "" || p.cache.Commit(unit, plans, preempt, pod)
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
	free := fit.FreeOf(info, c.reservations[node], c.priority, c.uid)
	if free.HasReservations() {
		if lacks := free.Lacks(c.amounts); lacks != "" {
			return framework.NewStatus(framework.Unschedulable, fmt.Sprintf("node(s) have %s reserved for a gang", lacks))
		}
	}
	if c.selector != nil {
		// No victim would help: which GPUs a pod would leave is not known.
		const code = framework.UnschedulableAndUnresolvable
		switch left, err := c.selector.Left(info); {
		case err != nil:
			return framework.NewStatus(code, "node(s) do not publish which GPUs are free")
		case left-free.Reserved(p.gpu()) < fit.AmountOf(c.amounts, p.gpu()):
			return framework.NewStatus(code, "node(s) have too few free GPUs that the pod accepts")
		}
	}
	if c.request != nil {
		return p.gpus.Filter(c.request, info)
	}
	return nil
}

// PostFilter runs before the scheduler's preemption. It lets that have victims for a
// member of a gang only if the whole gang fits once they are gone.
func (p *Plugin) PostFilter(
	_ context.Context, state framework.CycleState, pod *corev1.Pod, statuses framework.NodeToStatusReader,
) (*framework.PostFilterResult, *framework.Status) {
	c := cycleOf(state)
	preempt := false
	switch {
	case c == nil:
		preempt = !p.cache.Has(pod)
	case !c.member:
		p.cache.Block(pod)
		preempt = true
	default:
		status := statuses.Get(c.node)
		preempt = p.cache.TurnedAway(pod, c.node, status.Code() == framework.Unschedulable, status.Message())
	}
	if preempt {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable)
}

// PreScore skips pods without GPUs, and members of gangs, which have their node.
func (p *Plugin) PreScore(
	_ context.Context, state framework.CycleState, pod *corev1.Pod, _ []framework.NodeInfo,
) *framework.Status {
	c := cycleOf(state)
	if c == nil { // PreFilter skipped it.
		c = &cycle{amounts: fit.Requests(pod)}
	}
	if c.node != "" || c.request == nil && fit.AmountOf(c.amounts, p.gpu()) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	state.Write(scoreKey, c)
	return nil
}

// Score is by the node's GPUs.
func (p *Plugin) Score(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) (int64, *framework.Status) {
	data, err := state.Read(scoreKey)
	if err != nil {
		return 0, nil
	}
	c, _ := data.(*cycle)
	if c.request != nil {
		return p.gpus.ScoreShares(c.request, info), nil
	}
	return p.gpus.ScoreGPUs(fit.AmountOf(c.amounts, p.gpu()), p.args.GPUAware, info), nil
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

// Reserve notes that a member holds its node, and decides which GPUs a pod shares.
func (p *Plugin) Reserve(
	_ context.Context, state framework.CycleState, pod *corev1.Pod, node string,
) *framework.Status {
	c := cycleOf(state)
	if c != nil && c.request != nil {
		info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
		if err != nil {
			return framework.AsStatus(fmt.Errorf("node %s: %w", node, err))
		}
		if c.decision != nil && c.decision.Node == node {
			p.gpus.Restore(pod.UID, c.decision)
		} else if status := p.gpus.Reserve(c.request, pod, info); status != nil {
			return status
		}
	}
	if g := podGroupCycleOf(state); g != nil {
		g.held[pod.UID] = true
		if c != nil {
			c.decision = p.gpus.Decision(pod.UID)
		}
	}
	if rejection := p.cache.Reserve(pod, node); rejection != "" {
		return framework.NewStatus(framework.Unschedulable, rejection)
	}
	return nil
}

// Unreserve takes a member's node back, and that of its gang if that waits.
func (p *Plugin) Unreserve(_ context.Context, _ framework.CycleState, pod *corev1.Pod, node string) {
	p.gpus.Release(pod.UID)
	p.cache.Unreserve(pod, node)
}

// Permit lets a member wait until enough of its gang have a node.
func (p *Plugin) Permit(
	_ context.Context, _ framework.CycleState, pod *corev1.Pod, _ string,
) (*framework.Status, time.Duration) {
	if wait := p.cache.Permit(pod); wait > 0 {
		return framework.NewStatus(framework.Wait), wait
	}
	return nil, 0
}

// Bind binds pods that share GPUs, and skips all others.
func (p *Plugin) Bind(ctx context.Context, _ framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	return p.gpus.Bind(ctx, p.handle.ClientSet(), pod, node)
}

// PostBind notes that a member has its node.
func (p *Plugin) PostBind(_ context.Context, _ framework.CycleState, pod *corev1.Pod, node string) {
	if p.cache.IsNative(pod) {
		p.cache.Placed(types.NamespacedName{Namespace: pod.Namespace, Name: *pod.Spec.SchedulingGroup.PodGroupName})
		return
	}
	p.cache.Bound(pod, node)
}

// SignPod signs no pod of which the place depends on more than its spec: members of
// gangs, and pods with shares or selectors of GPUs. All others are left to the other
// plugins, so that they are batched as in a stock scheduler.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]framework.SignFragment, *framework.Status) {
	if p.cache.IsNative(pod) || gang.Mentions(pod) || p.gpus.Concerns(pod) {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	return nil, nil
}
