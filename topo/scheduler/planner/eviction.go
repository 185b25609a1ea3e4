package planner

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

const (
	// maxTrials bounds the plans of a search for victims, and again those of each of the
	// two that follow where it is over: on some thousand nodes a plan takes a millisecond.
	maxTrials = 128
	// maxSets bounds the sets of victims that are looked at without a plan.
	maxSets = 100_000
)

// eviction searches for the best victims that make room for the gangs of a request.
type eviction struct {
	planner *Planner
	request Request
	*Victims

	// lacking is how many GPUs must become free at least.
	lacking      int64
	trials, sets int
	best         []int
	plans        []Plan
}

func newEviction(p *Planner, r *Request, c *Cluster) *eviction {
	priority, _ := r.preemptor()
	own := make([]types.NamespacedName, len(r.Gangs))
	for i := range r.Gangs {
		own[i] = r.Gangs[i].Key
	}
	e := &eviction{planner: p, request: *r, Victims: ReadVictims(r.Nodes, c, priority, own...)}
	for i := range e.victims {
		e.victims[i].gpus = p.gpusOf(e.victims[i].gone)
	}
	return e
}

func (p *Planner) gpusOf(gone map[string]fit.Gone) (n int64) {
	for node := range gone {
		for _, gpu := range p.gpus {
			n += gone[node].Amounts[gpu]
		}
	}
	return n
}

// search returns the best set that it finds, and the plans without its pods; no plans if
// none is enough.
func (e *eviction) search() ([]int, []Plan) {
	if len(e.leaving) > 0 {
		if plans := e.plan(nil); plans != nil {
			return nil, plans
		}
	}
	all := make([]int, len(e.victims))
	for i := range all {
		all[i] = i
	}
	widest := e.plan(all)
	if widest == nil {
		return nil, nil
	}
	e.lacking = e.lacks()
	for size := 1; size <= len(all); size++ {
		if e.over() || e.plans != nil && e.violations(e.best) == 0 {
			break
		}
		e.exact(size, len(all), nil)
	}
	if e.over() && (e.plans == nil || e.violations(e.best) > 0) {
		// Those who are needed least first: what breaks a budget, then either small
		// victims, so that few large ones stay, or those that are worth most.
		e.spare(all, widest, func(v *victim) int64 { return v.gpus })
		e.spare(all, widest, func(*victim) int64 { return 0 })
	}
	return e.best, e.plans
}

func (e *eviction) over() bool { return e.trials >= maxTrials || e.sets >= maxSets }

// plan is with the pods of some victims gone; nil if that is not enough.
func (e *eviction) plan(set []int) []Plan {
	e.trials++
	r := e.request
	r.Gone = e.gone(set)
	plans, reason := e.planner.Plan(&r)
	if reason != "" {
		return nil
	}
	return plans
}

func (e *eviction) gone(set []int) map[string]fit.Gone {
	out, own := maps.Clone(e.leaving), map[string]bool{}
	for _, i := range set {
		for node, gone := range e.victims[i].gone {
			if before, shared := out[node]; shared {
				var merged fit.Gone
				if own[node] {
					merged = before
				} else {
					merged.Merge(&before)
				}
				merged.Merge(&gone)
				out[node], own[node] = merged, true
				continue
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

// exact tries all sets of a size that have only victims below an index beside some: the
// set first of which the most valuable victim is worth least.
func (e *eviction) exact(size, below int, beside []int) {
	if size == 0 {
		e.try(beside)
		return
	}
	for i := size - 1; i < below; i++ {
		if e.over() || e.plans != nil && e.violations(e.best) == 0 {
			return
		}
		e.exact(size-1, i, append([]int{i}, beside...))
	}
}

// try takes a set if it is better than the best, and enough.
func (e *eviction) try(set []int) {
	e.sets++
	var freed int64
	for _, i := range set {
		freed += e.victims[i].gpus
	}
	if e.lacking > 0 && freed < e.lacking || e.plans != nil && e.compare(set, e.best) >= 0 {
		return
	}
	if plans := e.plan(set); plans != nil {
		e.best, e.plans = set, plans
	}
}

// spare leaves out of all victims what is not needed, half of them at once, then fewer:
// those that break a budget first, then those of small size, then of high worth.
func (e *eviction) spare(all []int, plans []Plan, size func(*victim) int64) {
	order := func(a, b int) int {
		return cmp.Or(cmp.Compare(e.violations([]int{b}), e.violations([]int{a})),
			cmp.Compare(size(&e.victims[a]), size(&e.victims[b])), cmp.Compare(b, a))
	}
	set := e.on(all, plans)
	slices.SortFunc(set, order)
	until := e.trials + maxTrials
	for n := (len(set) + 1) / 2; n > 0 && len(set) > 0; n /= 2 {
		for at := 0; at < len(set) && e.trials < until; {
			rest := slices.Concat(set[:at], set[min(at+n, len(set)):])
			if found := e.plan(rest); found != nil {
				// Those that were tried in vain stay behind.
				plans, set, at = found, e.on(rest, found), len(e.on(set[:at], found))
			} else {
				at += n
			}
		}
	}
	slices.Sort(set)
	if e.plans == nil || e.compare(set, e.best) < 0 {
		e.best, e.plans = set, plans
	}
}

// on are the victims of a set that have pods on the nodes of plans: the others may stay.
func (e *eviction) on(set []int, plans []Plan) (out []int) {
	taken := nodesTaken(plans)
	for _, i := range set {
		for node := range e.victims[i].gone {
			if taken[node] {
				out = append(out, i)
				break
			}
		}
	}
	return out
}
