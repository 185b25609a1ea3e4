package planner

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxCandidates bounds the nodes that are found to take a pod of no gang once others are gone:
	// kube-scheduler's minimum.
	maxCandidates = 100
	// maxNodeTrials bounds the sets of victims that are tried on one node: all sets of six victims.
	maxNodeTrials = 64
)

// Filter reports whether the scheduler's filters take the pod on a node without some pods.
type Filter func(node string, gone map[types.UID]bool) bool

// HaveGangs reports whether the victims include a gang of several pods, which an eviction pod by
// pod would break.
func (v *Victims) HaveGangs() bool {
	return slices.ContainsFunc(v.victims, func(one victim) bool { return len(one.pods) > 1 })
}

// Leave reports whether pods of a lower priority leave a node already.
func (v *Victims) Leave(node string) bool { return len(v.leaving[node].UIDs) > 0 }

// Best returns the node on which the best set of victims makes room for a pod of no gang, and their
// pods; no node if no set is enough. Nodes that pods leave are tried first, then those with the
// least valuable victims. The search ends with the context.
func (v *Victims) Best(ctx context.Context, nodes []*Node, filter Filter) (node string, evict []*corev1.Pod) {
	on := map[string][]int{}
	for i := range v.victims {
		for node := range v.victims[i].gone {
			on[node] = append(on[node], i)
		}
	}
	// The first victim on a node; -1 if pods leave it.
	least := func(n *Node) int {
		if v.Leave(n.Name) {
			return -1
		}
		return append(on[n.Name], len(v.victims))[0]
	}
	var best []int
	found := 0
	order := func(a, b *Node) int { return cmp.Compare(least(a), least(b)) }
	for _, n := range slices.SortedStableFunc(slices.Values(nodes), order) {
		over := found > 0 && v.violations(best) == 0 && (len(best) == 0 || len(best) == 1 && least(n) >= best[0])
		if over || least(n) == len(v.victims) || found >= maxCandidates || ctx.Err() != nil {
			break
		}
		search := choice{Victims: v, enough: v.without(n.Name, filter), among: on[n.Name], maxTrials: maxNodeTrials}
		if set, ok := search.choose(ctx); ok {
			if found++; found == 1 || v.compare(set, best) < 0 {
				node, best = n.Name, set
			}
		}
	}
	return node, v.pods(best)
}

// without tries the filter on a node without the pods of a set; all of the set are needed.
func (v *Victims) without(node string, filter Filter) func(set []int) ([]int, bool) {
	return func(set []int) ([]int, bool) {
		gone := map[types.UID]bool{}
		maps.Copy(gone, v.leaving[node].UIDs)
		for _, i := range set {
			maps.Copy(gone, v.victims[i].gone[node].UIDs)
		}
		return set, filter(node, gone)
	}
}
