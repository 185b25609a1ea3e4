// Package plugin is a plugin of kube-scheduler that places gangs by the topology
// tree, and shares of GPUs.
//
// It owns the calls of the framework (k8s.io/kube-scheduler/framework) and the order of a
// scheduling cycle. It converts the framework's types to values, and calls the packages that
// decide: gangcache has the gangs, planner makes plans, sgpu knows the GPUs of nodes, and
// controller works in the background.
//
// # A gang of labels
//
// PreEnqueue keeps members out of the queue until the gang has the pods that it needs. The first
// member that is tried plans for all (PreFilter): it takes a snapshot of the gang, plans, and
// commits the plan, or the gang is rejected with a reason. A plan is a reservation, which Filter
// charges to all other pods until its members are bound or its deadline passes. Filter accepts a
// member only on its own node. Permit holds the members until this gang and all gangs of its groups
// have enough nodes reserved. If a member goes away before that, or at the deadline, all nodes are
// released at once.
//
// # A gang that preempts
//
// If the gang does not fit, the plan is made without the fewest gangs of a lower priority.
// PostFilter tries each member's node without their pods. Once all members pass, it
// evicts the pods and nominates the members. The plan keeps the room until the pods are gone. For
// a pod of no gang, nodes are tried without the gangs on them, which are evicted as a whole.
//
// # A gang that waits
//
// A second plugin, Queue, sorts the scheduler's queue by priority and the age of gangs. A gang
// without room lets the others pass, until it is the first that has waited for reserveAfter: then nodes are kept
// for it.
//
// # A native PodGroup
//
// With the feature gate GenericWorkload, Kubernetes schedules the members of a PodGroup of
// scheduling.k8s.io in one cycle, and asks where they may go (GeneratePlacements). The answer is
// all nodes, several times: PreFilter gives every member its node of a plan, and Filter
// accepts only that. If a node rejects a member, the next placement is planned around it.
// PodGroupPostFilter evicts the gangs that the plan needs gone. The gang cache does not have these
// gangs: plans respect the reservations of others, and reserve nothing.
package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/controller"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/packing"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// Name is the plugin's in the scheduler's configuration.
const Name = "Heddle"

var (
	_ framework.PreEnqueuePlugin         = (*Plugin)(nil)
	_ framework.PreFilterPlugin          = (*Plugin)(nil)
	_ framework.FilterPlugin             = (*Plugin)(nil)
	_ framework.PostFilterPlugin         = (*Plugin)(nil)
	_ framework.PreScorePlugin           = (*Plugin)(nil)
	_ framework.ScorePlugin              = (*Plugin)(nil)
	_ framework.ReservePlugin            = (*Plugin)(nil)
	_ framework.PermitPlugin             = (*Plugin)(nil)
	_ framework.BindPlugin               = (*Plugin)(nil)
	_ framework.EnqueueExtensions        = (*Plugin)(nil)
	_ framework.SignPlugin               = (*Plugin)(nil)
	_ framework.PlacementGeneratePlugin  = (*Plugin)(nil)
	_ framework.PodGroupPostFilterPlugin = (*Plugin)(nil)
)

// Plugin places gangs and shares of GPUs.
type Plugin struct {
	args       Args
	handle     framework.Handle
	log        *slog.Logger
	cache      *gangcache.Cache
	gpus       *sgpu.Scheduler
	planner    *planner.Planner
	budgets    policylisters.PodDisruptionBudgetLister
	controller *controller.Controller
	nodes      nodes
	devices    *claims.Nodes
	suspects   *suspect.Memory
	// measured is the time of the last measurement of the free capacity.
	measured time.Time
	// demand has learned from the pods with GPUs. capacity counts the GPUs of all nodes, in percent of one, at the
	// time surveyed; selected has the classes of pods whose nodes were found since. Only scheduling cycles use them.
	demand   packing.Demand
	capacity int64
	surveyed time.Time
	selected map[planner.Key]bool
	done     sync.WaitGroup
}

// Factory returns the plugin's factory for kube-scheduler's registry. The registerer gets the plugin's metrics, and
// the queue the gangs to sort by. The elections have the metric of the scheduler's leader election; with nil this
// process always leads.
func Factory(
	log *slog.Logger, r prometheus.Registerer, elections prometheus.Gatherer, queue *Queue,
) func(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return func(ctx context.Context, object runtime.Object, handle framework.Handle) (framework.Plugin, error) {
		args, err := readArgs(object)
		if err != nil {
			return nil, err
		}
		return newPlugin(ctx, args, handle, log, r, elections, queue)
	}
}

// newPlugin makes the plugin and starts its controller, which ends with the context.
func newPlugin(
	ctx context.Context, args Args, handle framework.Handle, log *slog.Logger,
	r prometheus.Registerer, elections prometheus.Gatherer, queue *Queue,
) (*Plugin, error) {
	topology := topologyclient.New(topologyclient.Options{
		URL: args.TopoMaster, CAFile: args.CAFile, TokenFile: args.TokenFile,
		Interval: args.Interval.Duration, MaxAge: args.MaxAge.Duration, Log: log,
	})
	metrics := gangcache.NewMetrics()
	p := &Plugin{
		args: args, handle: handle, log: log, gpus: sgpu.New(args.nodeConfig(), log, metrics.IgnoredAnnotations),
		selected: map[planner.Key]bool{}, devices: claims.New(ctx), suspects: suspect.NewMemory(),
	}
	p.cache = gangcache.New(gangcache.Options{
		Domains: args.Domains, Ignored: args.Ignored, Native: args.GenericWorkload, GPUs: p.gpus,
		HoldAfter: args.ReserveAfter.Duration, SparesPriority: args.SparesPriority, Metrics: metrics,
	})
	p.planner = planner.New(topology, args.WithoutMap, p.gpus.GPUs())
	p.budgets = handle.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister()
	queue.cache.Store(p.cache)
	var err error
	p.controller, err = controller.New(controller.Options{
		Plugin: Name, Handle: handle, Cache: p.cache, Topology: topology, PodGroups: args.PodGroups,
		Elections: elections, Suspects: p.suspects, Log: log,
	})
	if err != nil {
		return nil, err
	}
	if err := p.cache.Metrics.Register(r); err != nil {
		log.ErrorContext(ctx, "no metrics: only one profile may have the plugin", "err", err)
	}
	p.done.Go(func() { p.controller.Run(ctx) })
	return p, nil
}

// Name returns the plugin's name.
func (*Plugin) Name() string { return Name }

// Close waits for the controller to end. The framework calls it after the context has ended.
func (p *Plugin) Close() error {
	p.done.Wait()
	return nil
}

// hcas returns the pod's requests that may be for HCAs; see [planner.HCAs].
func (p *Plugin) hcas(pod *corev1.Pod) planner.Amounts {
	return planner.HCAs(pod, slices.Concat(p.gpus.GPUs(), p.args.Ignored)...)
}

// labeled reports whether a pod's labels or annotations name a gang, and are not ignored.
func (p *Plugin) labeled(pod *corev1.Pod) bool { return !p.cache.IsNative(pod) && gang.Mentions(pod) }

// PreEnqueue keeps a member out of the queue until its gang has the pods that it needs. It runs
// under the queue's lock.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if !p.labeled(pod) {
		return nil
	}
	added, reason := p.cache.Admit(pod)
	if added {
		// The queue may have a pod that is deleted already, and no event about it would follow.
		now, err := p.handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace).Get(pod.Name)
		if err != nil || now.UID != pod.UID {
			p.cache.DeletePod(pod)
			reason = "the pod is gone"
		}
	}
	if reason != "" {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, reason)
	}
	return nil
}

// Reserve decides which GPUs a pod shares, and learns what it asks for.
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
	if c != nil && c.learned { // A PodGroup's cycle reserves for a pod, takes that back, and reserves again.
		return nil
	}
	p.survey()
	if infos, err := p.handle.SnapshotSharedLister().NodeInfos().List(); err == nil {
		p.learnDemand(pod, infos)
		if c != nil {
			c.learned = true
		}
	}
	return nil
}

// Unreserve takes back a member's node, and the nodes of its gang if the gang still waits.
func (p *Plugin) Unreserve(_ context.Context, _ framework.CycleState, pod *corev1.Pod, node string) {
	p.gpus.Release(pod.UID)
	p.cache.Unreserve(pod, node)
}

// Permit makes a member wait until enough members of its gang hold a node.
func (p *Plugin) Permit(
	_ context.Context, _ framework.CycleState, pod *corev1.Pod, node string,
) (*framework.Status, time.Duration) {
	if p.cache.IsNative(pod) {
		return p.permitPodGroup(pod)
	}
	switch wait, rejection := p.cache.Permit(pod, node); {
	case rejection != "":
		return framework.NewStatus(framework.Unschedulable, rejection), 0
	case wait > 0:
		return framework.NewStatus(framework.Wait), wait
	}
	return nil, 0
}

// Bind binds pods that share GPUs, and leaves all others to the next plugin.
func (p *Plugin) Bind(ctx context.Context, _ framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	return p.gpus.Bind(ctx, p.handle.ClientSet(), pod, node)
}

// SignPod prevents batching of pods that are not placed by their spec alone: members of gangs,
// and pods with shares or selectors of GPUs. Other pods are batched as in a stock scheduler.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]framework.SignFragment, *framework.Status) {
	if p.cache.IsNative(pod) || gang.Mentions(pod) || p.gpus.Concerns(pod) {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	return nil, nil
}

// EventsToRegister returns the events that may help a pod which this plugin rejected. For events
// of heddle's own (another topology tree, reservations that end, the last member of a gang, a
// PodGroup object) the controller activates pods.
func (p *Plugin) EventsToRegister(context.Context) ([]framework.ClusterEventWithHint, error) {
	type event = framework.ClusterEvent
	const node = framework.Add | framework.UpdateNodeAllocatable | framework.UpdateNodeLabel | framework.UpdateNodeTaint |
		framework.UpdateNodeCondition
	const annotations = framework.UpdateNodeAnnotation
	const self = framework.UpdatePodLabel | framework.UpdatePodToleration | framework.UpdatePodScaleDown |
		framework.UpdatePodGeneratedResourceClaim
	const freed = framework.Delete | framework.UpdatePodScaleDown
	const offered, every = framework.Add | framework.Update, framework.Add | framework.Update | framework.Delete
	return []framework.ClusterEventWithHint{
		{Event: event{Resource: framework.Node, ActionType: node}, QueueingHintFn: p.afterChange},
		{Event: event{Resource: framework.Node, ActionType: annotations}, QueueingHintFn: p.afterAnnotation},
		{Event: event{Resource: framework.AssignedPod, ActionType: freed}, QueueingHintFn: p.afterChange},
		{Event: event{Resource: framework.ResourceClaim, ActionType: every}, QueueingHintFn: p.afterClaim},
		{Event: event{Resource: framework.ResourceSlice, ActionType: offered}, QueueingHintFn: p.afterChange},
		{Event: event{Resource: framework.DeviceClass, ActionType: offered}, QueueingHintFn: p.afterChange},
		{Event: event{Resource: framework.TargetPod, ActionType: self}}, // Without a hint it is always queued.
	}, nil
}

// afterChange is called after a node was added or changed, or a pod left a node.
func (p *Plugin) afterChange(_ logr.Logger, pod *corev1.Pod, _, _ any) (framework.QueueingHint, error) {
	if p.cache.WorthTrying(pod) {
		return framework.Queue, nil
	}
	return framework.QueueSkip, nil
}

// afterClaim is called after a claim changed. It matters if its devices are free again, as they are a while after its
// pod, to pods with claims if it is new, and to those that name it.
func (p *Plugin) afterClaim(log logr.Logger, pod *corev1.Pod, older, newer any) (framework.QueueingHint, error) {
	was, _ := older.(*resourceapi.ResourceClaim)
	is, _ := newer.(*resourceapi.ResourceClaim)
	named := func(ref corev1.PodResourceClaim) bool {
		return ref.ResourceClaimName != nil && *ref.ResourceClaimName == is.Name && pod.Namespace == is.Namespace
	}
	switch {
	case is == nil, was != nil && was.Status.Allocation != nil && is.Status.Allocation == nil,
		was == nil && len(pod.Spec.ResourceClaims) > 0, slices.ContainsFunc(pod.Spec.ResourceClaims, named):
		return p.afterChange(log, pod, older, newer)
	}
	return framework.QueueSkip, nil
}

// afterAnnotation is called after a node's annotations changed, which matter to pods with shares
// or selectors of GPUs, or with several HCAs.
func (p *Plugin) afterAnnotation(log logr.Logger, pod *corev1.Pod, older, newer any) (framework.QueueingHint, error) {
	if p.gpus.Concerns(pod) || len(p.hcas(pod)) > 0 {
		return p.afterChange(log, pod, older, newer)
	}
	return framework.QueueSkip, nil
}
