package planner

import (
	"context"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// maxTrials bounds the plans of a search for victims. On some thousand nodes a plan takes a
// millisecond.
const maxTrials = 128

// Preempt plans the gangs of a request without some pods of a lower priority: the terminating pods
// if that is enough, else the pods of the fewest gangs. The search ends with the context.
func (p *Planner) Preempt(ctx context.Context, r *Request, c *Cluster) Plan {
	if !r.MayPreempt() {
		return Plan{}
	}
	priority, _ := r.preemptor()
	e := newEviction(p, r, ReadVictims(r.Nodes, c, priority, r.Gangs...))
	set, ok := e.choose(ctx)
	if !ok {
		return Plan{}
	}
	if _, ok := e.fits(set); !ok {
		// With constraints of spread the needed victims of a plan may not be enough alone.
		set = e.without
	}
	out := Plan{Places: e.places}
	for _, pod := range e.terminating {
		if e.taken[pod.Spec.NodeName] {
			out.Leaving = append(out.Leaving, pod)
		}
	}
	out.Leaving = append(out.Leaving, e.pods(set)...)
	return out
}

// MayPreempt reports whether a pod of a lower priority exists, and all members that need a node may
// preempt. Most gangs need no search.
func (r *Request) MayPreempt() bool {
	priority, may := r.preemptor()
	return may && AnyBelow(r.Nodes, priority)
}

// preemptor returns the lowest priority of the members that need a node, and whether all of
// them may preempt.
func (r *Request) preemptor() (priority int32, may bool) {
	priority = math.MaxInt32
	for i := range r.Gangs {
		priority = min(priority, r.Gangs[i].Priority())
		if slices.ContainsFunc(r.Gangs[i].Members, func(m Member) bool {
			policy := m.Pod.Spec.PreemptionPolicy
			return m.Node == "" && policy != nil && *policy == corev1.PreemptNever
		}) {
			return 0, false
		}
	}
	return priority, true
}

// eviction is the room for the gangs of a request.
type eviction struct {
	choice
	planner *Planner
	request Request

	// places are the result of the last plan, made without the pods of a set, and taken their nodes.
	places  []Place
	without []int
	taken   map[string]bool
}

func newEviction(p *Planner, r *Request, v *Victims) *eviction {
	e := &eviction{planner: p, request: *r}
	e.choice = choice{Victims: v, enough: e.fits, gpus: make([]int64, len(v.victims)), maxTrials: maxTrials}
	for i := range v.victims {
		e.among = append(e.among, i)
		for _, gone := range v.victims[i].gone {
			for _, gpu := range p.gpus {
				e.gpus[i] += gone.Amounts[gpu]
			}
		}
	}
	e.lacking = max(0, e.lacks())
	return e
}

// fits plans without the pods of some victims. needed lists the victims with pods on the nodes of
// the plan.
func (e *eviction) fits(set []int) (needed []int, ok bool) {
	if len(set)+len(e.leaving) == 0 {
		return nil, false
	}
	r := e.request
	r.Gone = maps.Clone(e.leaving)
	for _, i := range set {
		for node, gone := range e.victims[i].gone {
			if before, shared := r.Gone[node]; shared {
				gone = before.Union(gone)
			}
			r.Gone[node] = gone
		}
	}
	plan := e.planner.Plan(&r)
	if plan.Places == nil {
		return nil, false
	}
	e.places, e.without, e.taken = plan.Places, set, map[string]bool{}
	for i := range plan.Places {
		for _, node := range plan.Places[i].Nodes {
			e.taken[node] = true
		}
	}
	for _, i := range set {
		for node := range e.victims[i].gone {
			if e.taken[node] {
				needed = append(needed, i)
				break
			}
		}
	}
	return needed, true
}

// lacks returns how many GPUs the members that must get a node request, less all that are free.
func (e *eviction) lacks() (gpus int64) {
	for i := range e.request.Gangs {
		g := &e.request.Gangs[i]
		need, requests := g.MinMember, []int(nil)
		for at := range g.Members {
			if m := &g.Members[at]; m.Node == "" {
				requests = append(requests, m.GPUs)
			} else {
				need--
			}
		}
		slices.Sort(requests)
		for _, n := range requests[:min(max(need, 0), len(requests))] {
			gpus += int64(n)
		}
	}
	query := Query{Nodes: e.request.Nodes, Gone: e.leaving}
	for _, name := range e.planner.gpus {
		for _, free := range e.planner.table.Free(&query, name, nil) {
			gpus -= int64(free)
		}
	}
	return gpus
}
