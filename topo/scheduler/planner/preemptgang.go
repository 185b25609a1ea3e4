package planner

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// Preempt plans the gangs of a request with pods of a lower priority gone: none that do
// not terminate already if that is enough, else those of the fewest gangs. leaving are the
// pods that must be gone first; there are no plans without.
func (p *Planner) Preempt(r *Request, c *Cluster) (plans []Plan, leaving []*corev1.Pod) {
	if !r.MayPreempt() {
		return nil, nil
	}
	e := newEviction(p, r, c)
	set, plans := e.search()
	if plans == nil {
		return nil, nil
	}
	for _, pod := range e.terminating {
		if e.taken[pod.Spec.NodeName] {
			leaving = append(leaving, pod)
		}
	}
	return plans, append(leaving, e.pods(set)...)
}

// MayPreempt reports whether there is a pod of a lower priority, and all members that need
// a node may preempt: for most gangs there is nothing to search.
func (r *Request) MayPreempt() bool {
	priority, may := r.preemptor()
	return may && AnyBelow(r.Nodes, priority)
}

// AnyBelow reports whether there is a pod of a lower priority on nodes.
func AnyBelow(nodes []framework.NodeInfo, priority int32) bool {
	return slices.ContainsFunc(nodes, func(info framework.NodeInfo) bool {
		return slices.ContainsFunc(info.GetPods(), func(on framework.PodInfo) bool {
			return schedulehelpers.PodPriority(on.GetPod()) < priority
		})
	})
}

// preemptor is the lowest priority of the members that need a node, and whether all of
// them may preempt.
func (r *Request) preemptor() (priority int32, may bool) {
	priority = math.MaxInt32
	for i := range r.Gangs {
		priority = min(priority, r.Gangs[i].priority())
		if slices.ContainsFunc(r.Gangs[i].Members, func(m Member) bool {
			policy := m.Pod.Spec.PreemptionPolicy
			return m.Node == "" && policy != nil && *policy == corev1.PreemptNever
		}) {
			return 0, false
		}
	}
	return priority, true
}

const (
	// maxTrials bounds the plans of a search for victims: on some thousand nodes a plan takes a
	// millisecond.
	maxTrials = 128
	// maxSets bounds the sets of victims that are looked at without a plan.
	maxSets = 100_000
)

// eviction searches for the best victims that make room for the gangs of a request.
type eviction struct {
	choice
	planner *Planner
	request Request

	// lacking is how many GPUs must become free at least.
	lacking int64
	// plans are the last ones that were made, without the pods of a set, and taken the nodes
	// that they use.
	plans   []Plan
	without []int
	taken   map[string]bool
}

func newEviction(p *Planner, r *Request, c *Cluster) *eviction {
	priority, _ := r.preemptor()
	own := make([]types.NamespacedName, len(r.Gangs))
	for i := range r.Gangs {
		own[i] = r.Gangs[i].Key
	}
	e := &eviction{planner: p, request: *r}
	e.choice = choice{
		Victims: ReadVictims(r.Nodes, c, priority, own...), room: e, maxTrials: maxTrials, maxSets: maxSets,
	}
	for i := range e.victims {
		e.among = append(e.among, i)
		for _, gone := range e.victims[i].gone {
			for _, gpu := range p.gpus {
				e.victims[i].gpus += gone.Amounts[gpu]
			}
		}
	}
	return e
}

// search returns the best set that it finds, and the plans without its pods; no plans if
// none is enough.
func (e *eviction) search() ([]int, []Plan) {
	e.lacking = e.lacks()
	set, ok := e.choose()
	if !ok {
		return nil, nil
	}
	if !slices.Equal(set, e.without) && !e.fits(set) {
		// With limits of spread what the last plan needs may not be enough by itself: that plan's set is.
		set = e.without
	}
	return set, e.plans
}

// fits makes plans with the pods of some victims gone. Without any the gangs were planned before.
func (e *eviction) fits(set []int) bool {
	if len(set)+len(e.leaving) == 0 {
		return false
	}
	r := e.request
	r.Gone = e.gone(set)
	plans, reason := e.planner.Plan(&r)
	if reason != "" {
		return false
	}
	e.plans, e.without, e.taken = plans, set, map[string]bool{}
	for i := range plans {
		for _, node := range plans[i].Nodes {
			e.taken[node] = true
		}
	}
	return true
}

// needs reports whether a victim has pods on the nodes of the plans.
func (e *eviction) needs(victim int) bool {
	for node := range e.victims[victim].gone {
		if e.taken[node] {
			return true
		}
	}
	return false
}

func (e *eviction) size(victim int) int64 { return e.victims[victim].gpus }

func (e *eviction) mayFit(set []int) bool {
	var freed int64
	for _, i := range set {
		freed += e.victims[i].gpus
	}
	return freed >= e.lacking
}

func (e *eviction) gone(set []int) map[string]fit.Gone {
	out := maps.Clone(e.leaving)
	for _, i := range set {
		for node, gone := range e.victims[i].gone {
			if before, shared := out[node]; shared {
				gone = fit.Union(before, gone)
			}
			out[node] = gone
		}
	}
	return out
}

// lacks is how many GPUs the members that must get a node ask for, less all that are free.
func (e *eviction) lacks() (gpus int64) {
	for i := range e.request.Gangs {
		g := &e.request.Gangs[i]
		need, ask := g.MinMember, []int(nil)
		for at := range g.Members {
			if m := &g.Members[at]; m.Node == "" {
				ask = append(ask, m.GPUs)
			} else {
				need--
			}
		}
		slices.Sort(ask)
		for _, n := range ask[:min(max(need, 0), len(ask))] {
			gpus += int64(n)
		}
	}
	query := fit.Query{Nodes: e.request.Nodes, Asker: fit.Asker{Gone: e.leaving}}
	for _, name := range e.planner.gpus {
		for _, free := range e.planner.table.Free(&query, name, nil) {
			gpus -= int64(free)
		}
	}
	return gpus
}
