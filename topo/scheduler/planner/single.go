package planner

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// This file is for a pod of no gang, which needs one node: the filters of the scheduler
// decide whether that takes it without a set of victims. Candidate nodes come in the order
// in which they may be best, so that few are tried.

// Single is what a pod of no gang asks for.
type Single struct {
	Amounts      fit.Amounts
	Reservations fit.Reservations
	Asker        fit.Asker
}

// Candidate is a node that may take the pod once victims are gone.
type Candidate struct {
	Info framework.NodeInfo
	// On are the victims that have pods on the node.
	On []int
	// first is the least valuable victim that alone frees enough and breaks no budget, as
	// far as amounts show; none is the number of victims, and -1 that nothing must be evicted.
	first int
	// lacks is what the pod lacks with all victims there.
	lacks corev1.ResourceName

	victims *Victims
	asks    *Single
}

// HaveGangs reports whether there is a gang of several pods among the victims: eviction pod
// by pod would halve it.
func (v *Victims) HaveGangs() bool {
	return slices.ContainsFunc(v.victims, func(one victim) bool { return len(one.pods) > 1 })
}

// Pods are those of a set.
func (v *Victims) Pods(set []int) (pods []*corev1.Pod) {
	for _, i := range set {
		pods = append(pods, v.victims[i].pods...)
	}
	return pods
}

// Gone are the pods of a node that are gone without a set.
func (v *Victims) Gone(node string, set []int) map[types.UID]bool {
	gone := v.gone(node, set)
	return gone.UIDs
}

func (v *Victims) gone(node string, set []int) (out fit.Gone) {
	leaving := v.leaving[node]
	out.Merge(&leaving)
	for _, i := range set {
		if gone, ok := v.victims[i].gone[node]; ok {
			out.Merge(&gone)
		}
	}
	return out
}

// Better reports whether a set is better than another.
func (v *Victims) Better(a, b []int) bool { return v.compare(a, b) < 0 }

// Candidates are those of nodes that have victims, or pods that leave: the one first of which
// less may have to be evicted.
func (v *Victims) Candidates(nodes []framework.NodeInfo, s *Single) (out []Candidate) {
	on := map[string][]int{}
	for i := range v.victims {
		for node := range v.victims[i].gone {
			on[node] = append(on[node], i)
		}
	}
	for _, info := range nodes {
		node := info.Node().Name
		if _, leaving := v.leaving[node]; !leaving && len(on[node]) == 0 {
			continue
		}
		c := Candidate{Info: info, On: on[node], first: len(v.victims), victims: v, asks: s}
		if c.lacks = v.lacks(info, s, nil); c.lacks == "" {
			c.first = -1
		} else if at := slices.IndexFunc(c.On, func(i int) bool {
			set := []int{i}
			return v.violations(set) == 0 && v.lacks(info, s, set) == ""
		}); at >= 0 {
			c.first = c.On[at]
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b Candidate) int { return cmp.Compare(a.first, b.first) })
	return out
}

// lacks is what a pod lacks on a node without a set, as far as amounts show.
func (v *Victims) lacks(info framework.NodeInfo, s *Single, set []int) corev1.ResourceName {
	node, asker := info.Node().Name, s.Asker
	asker.Gone = map[string]fit.Gone{node: v.gone(node, set)}
	free := fit.FreeOf(info, s.Reservations[node], &asker)
	return free.Lacks(s.Amounts)
}

// MayBeat reports whether a set of this candidate may be better than one of those before it.
func (v *Victims) MayBeat(c *Candidate, best []int) bool {
	return len(best) > 1 || v.violations(best) > 0 || len(best) == 1 && c.first < best[0]
}

// maxSingleSets bounds the sets of one node that are looked at: all of nine victims.
const maxSingleSets = 512

// Choose returns the best set of victims on the candidate that is found; false if all are not
// enough. fits are the scheduler's filters, without the pods of a set.
func (c *Candidate) Choose(fits func(set []int) bool) (best []int, ok bool) {
	search := choice{
		Victims: c.victims, room: &filtered{c, fits}, among: c.On, maxTrials: maxSingleSets, maxSets: maxSingleSets,
	}
	return search.choose()
}

// filtered is the room that victims make on a candidate.
type filtered struct {
	*Candidate
	filter func(set []int) bool
}

func (f *filtered) mayFit(set []int) bool { return f.victims.lacks(f.Info, f.asks, set) == "" }
func (f *filtered) fits(set []int) bool   { return f.filter(set) }
func (f *filtered) needs(int) bool        { return true }

func (f *filtered) size(victim int) int64 {
	return f.victims.victims[victim].gone[f.Info.Node().Name].Amounts[f.lacks]
}
