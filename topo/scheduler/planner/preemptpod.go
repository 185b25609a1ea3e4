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

// maxCandidates bounds the nodes that are found to take a pod of no gang once others are gone:
// kube-scheduler's least number.
const maxCandidates = 100

// maxSingleSets bounds the sets of one node that are looked at: all of nine victims.
const maxSingleSets = 512

// Single is what a pod of no gang asks for.
type Single struct {
	Amounts      fit.Amounts
	Reservations fit.Reservations
	Asker        fit.Asker
}

// HaveGangs reports whether there is a gang of several pods among the victims: eviction pod
// by pod would halve it.
func (v *Victims) HaveGangs() bool {
	return slices.ContainsFunc(v.victims, func(one victim) bool { return len(one.pods) > 1 })
}

// Leave reports whether pods of a lower priority leave a node already.
func (v *Victims) Leave(node string) bool { return len(v.leaving[node].UIDs) > 0 }

// Best is the node on which the best set of victims makes room for a pod, and their pods; no
// node if none is enough. fits are the scheduler's filters, on a node without some pods.
func (v *Victims) Best(
	nodes []framework.NodeInfo, s *Single, fits func(node framework.NodeInfo, gone map[types.UID]bool) bool,
) (node string, evict []*corev1.Pod) {
	var best []int
	found, candidates := 0, v.candidates(nodes, s)
	for i := range candidates {
		c := &candidates[i]
		if found >= maxCandidates || found > 0 && !v.mayBeat(c, best) {
			break
		}
		c.filter = fits
		search := choice{Victims: v, room: c, among: c.on, maxTrials: maxSingleSets, maxSets: maxSingleSets}
		if set, ok := search.choose(); ok {
			if found++; found == 1 || v.compare(set, best) < 0 {
				node, best = c.info.Node().Name, set
			}
		}
	}
	return node, v.pods(best)
}

// candidate is a node that may take the pod once victims are gone.
type candidate struct {
	*Victims
	*Single
	filter func(node framework.NodeInfo, gone map[types.UID]bool) bool
	info   framework.NodeInfo
	// on are the victims that have pods on the node.
	on []int
	// first is the least valuable victim that alone frees enough and breaks no budget, as
	// far as amounts show; none is the number of victims, and -1 that nothing must be evicted.
	first int
	// lacking is what the pod lacks with all victims there.
	lacking corev1.ResourceName
}

// candidates are those of nodes that have victims, or pods that leave: the one first of which
// less may have to be evicted.
func (v *Victims) candidates(nodes []framework.NodeInfo, s *Single) (out []candidate) {
	on := map[string][]int{}
	for i := range v.victims {
		for node := range v.victims[i].gone {
			on[node] = append(on[node], i)
		}
	}
	for _, info := range nodes {
		node := info.Node().Name
		if len(on[node]) == 0 && !v.Leave(node) {
			continue
		}
		c := candidate{Victims: v, Single: s, info: info, on: on[node], first: len(v.victims)}
		if c.lacking = c.lacks(nil); c.lacking == "" {
			c.first = -1
		} else if at := slices.IndexFunc(c.on, func(i int) bool {
			return v.violations([]int{i}) == 0 && c.mayFit([]int{i})
		}); at >= 0 {
			c.first = c.on[at]
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b candidate) int { return cmp.Compare(a.first, b.first) })
	return out
}

// mayBeat reports whether a set of this candidate may be better than one of those before it.
func (v *Victims) mayBeat(c *candidate, best []int) bool {
	return len(best) > 1 || v.violations(best) > 0 || len(best) == 1 && c.first < best[0]
}

// gone are the pods of the node that are gone without a set.
func (c *candidate) gone(set []int) fit.Gone {
	node := c.info.Node().Name
	parts := []fit.Gone{c.leaving[node]}
	for _, i := range set {
		parts = append(parts, c.victims[i].gone[node])
	}
	return fit.Union(parts...)
}

// lacks is what the pod lacks on the node without a set, as far as amounts show.
func (c *candidate) lacks(set []int) corev1.ResourceName {
	node, asker := c.info.Node().Name, c.Asker
	asker.Gone = map[string]fit.Gone{node: c.gone(set)}
	free := fit.FreeOf(c.info, c.Reservations[node], &asker)
	return free.Lacks(c.Amounts)
}

func (c *candidate) mayFit(set []int) bool { return c.lacks(set) == "" }
func (c *candidate) needs(int) bool        { return true }

func (c *candidate) fits(set []int) bool {
	gone := c.gone(set)
	return c.filter(c.info, gone.UIDs)
}

func (c *candidate) size(victim int) int64 {
	return c.victims[victim].gone[c.info.Node().Name].Amounts[c.lacking]
}
