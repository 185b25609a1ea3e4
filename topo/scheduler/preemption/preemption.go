// Package preemption makes room by the eviction of pods of a lower priority: for gangs, for
// native PodGroups, and for pods of no gang. A gang is evicted whole or not at all.
//
// Which pods must leave for a plan is decided by planner. This package tries the scheduler's
// filters without them, and evicts. It knows no other cycle than the one that it is called in:
// what is to be evicted for a gang, and whether that has begun, is in the gang cache.
package preemption

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// Options of a Preemptor.
type Options struct {
	// Plugin is the name of the scheduler's plugin, for rejections.
	Plugin  string
	Handle  framework.Handle
	Cache   *gangcache.Cache
	Planner *planner.Planner
	Log     *slog.Logger
}

// Preemptor has pods evicted. It is for one goroutine: that of the scheduling cycles.
type Preemptor struct {
	Options
	budgets policylisters.PodDisruptionBudgetLister
}

// New returns a preemptor, and has the disruption budgets watched.
func New(o Options) *Preemptor {
	return &Preemptor{Options: o, budgets: o.Handle.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister()}
}

// Plan plans gangs with pods of a lower priority gone, if all of their members may.
func (p *Preemptor) Plan(r *planner.Request) (plans []planner.Plan, leaving []*corev1.Pod) {
	if !r.MayPreempt() {
		return nil, nil
	}
	defer p.observe(time.Now())
	return p.Planner.Preempt(r, p.cluster())
}

// observe adds the time of a search for victims to the metric.
func (p *Preemptor) observe(begin time.Time) {
	p.Cache.Metrics.Plans.WithLabelValues("preempting").Observe(time.Since(begin).Seconds())
}

// cluster is what preemption must know beside the nodes.
func (p *Preemptor) cluster() *planner.Cluster {
	budgets, _ := p.budgets.List(labels.Everything()) // What is in memory has no errors.
	return &planner.Cluster{GangOf: p.Cache.GangOf(), Budgets: budgets}
}

// LeavesRoom reports whether a member's node takes it once the pods have left that its plan
// expects to: there are some, and no filter rejects it then.
func (p *Preemptor) LeavesRoom(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) bool {
	leaving := p.Cache.Leaving(pod)
	if len(leaving) == 0 {
		return false
	}
	info, err := p.Handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return false
	}
	gone := make(map[types.UID]bool, len(leaving))
	for _, l := range leaving {
		gone[l.UID] = true
	}
	return p.fitsWithout(ctx, state, pod, info, gone)
}

// fitsWithout reports whether no filter rejects a pod on a node once others have left it;
// some of these must be on the node.
func (p *Preemptor) fitsWithout(
	ctx context.Context, state framework.CycleState, pod *corev1.Pod, info framework.NodeInfo, gone map[types.UID]bool,
) bool {
	without, trial, some := info.Snapshot(), state.Clone(), false
	for _, on := range info.GetPods() {
		if !gone[on.GetPod().UID] {
			continue
		}
		some = true
		if err := without.RemovePod(logr.FromContextOrDiscard(ctx), on.GetPod()); err != nil {
			return false
		}
		if !p.Handle.RunPreFilterExtensionRemovePod(ctx, trial, pod, on, without).IsSuccess() {
			return false
		}
	}
	return some && p.Handle.RunFilterPluginsWithNominatedPods(ctx, trial, pod, without).IsSuccess()
}

// Evict evicts the pods that must leave for a member's gang, once for all members. It
// reports whether that has begun: each has its node as soon as they are gone.
func (p *Preemptor) Evict(ctx context.Context, preemptor *corev1.Pod) bool {
	victims, begun := p.Cache.Preempt(preemptor)
	if len(victims) == 0 {
		return begun
	}
	if !p.evict(ctx, preemptor, "podgroup of pod", victims) {
		p.Cache.NotEvicted(preemptor)
		return false
	}
	return true
}

// Nominate nominates a pod for a node, or for none.
func Nominate(node string) *framework.PostFilterResult {
	return &framework.PostFilterResult{NominatingInfo: &framework.NominatingInfo{
		NominatedNodeName: node, NominatingMode: framework.ModeOverride,
	}}
}
