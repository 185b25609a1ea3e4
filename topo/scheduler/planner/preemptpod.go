package planner

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

const (
	// maxCandidates bounds the nodes that are found to take a pod of no gang once others are gone:
	// kube-scheduler's minimum.
	maxCandidates = 100
	// maxNodeSets bounds the sets of victims on one node: all sets of nine victims.
	maxNodeSets = 512
)

// Filter reports whether the scheduler's filters take the pod on a node without some pods.
type Filter func(node string, gone map[types.UID]bool) bool

// Single is a pod of no gang, which needs one node.
type Single struct {
	Amounts      fit.Amounts
	Reservations fit.Reservations
	Asker        fit.Asker
}

// HaveGangs reports whether the victims include a gang of several pods, which an eviction pod by
// pod would break.
func (v *Victims) HaveGangs() bool {
	return slices.ContainsFunc(v.victims, func(one victim) bool { return len(one.pods) > 1 })
}

// Leave reports whether pods of a lower priority leave a node already.
func (v *Victims) Leave(node string) bool { return len(v.leaving[node].UIDs) > 0 }

// Best returns the node on which the best set of victims makes room for a pod, and their pods; no
// node if no set is enough. The search ends with the context.
func (v *Victims) Best(
	ctx context.Context, nodes []*fit.Node, s *Single, filter Filter,
) (node string, evict []*corev1.Pod) {
	var best []int
	found, candidates := 0, v.candidates(nodes, s)
	for i := range candidates {
		c := &candidates[i]
		if found >= maxCandidates || ctx.Err() != nil ||
			found > 0 && len(best) <= 1 && v.violations(best) == 0 && (len(best) == 0 || c.first >= best[0]) {
			break
		}
		c.filter = filter
		search := choice{Victims: v, room: c, among: c.on, maxTrials: maxNodeSets, maxSets: maxNodeSets}
		if set, ok := search.choose(ctx); ok {
			if found++; found == 1 || v.compare(set, best) < 0 {
				node, best = c.node.Name, set
			}
		}
	}
	return node, v.pods(best)
}

// candidate is the room on one node.
type candidate struct {
	*Victims
	*Single
	filter Filter
	node   *fit.Node
	// on are the victims with pods on the node.
	on []int
	// first is the least valuable victim that may be enough alone and breaks no budget:
	// -1 if no eviction may be needed, and the number of victims if one is not enough.
	first int
}

// candidates returns the nodes with victims or terminating pods, those first on which the least
// may have to be evicted, so that few are tried.
func (v *Victims) candidates(nodes []*fit.Node, s *Single) (out []candidate) {
	on := map[string][]int{}
	for i := range v.victims {
		for node := range v.victims[i].gone {
			on[node] = append(on[node], i)
		}
	}
	for _, node := range nodes {
		if len(on[node.Name]) == 0 && !v.Leave(node.Name) {
			continue
		}
		c := candidate{Victims: v, Single: s, node: node, on: on[node.Name], first: len(v.victims)}
		if c.mayFit(nil) {
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

// gone returns the pods of the node that are gone without a set.
func (c *candidate) gone(set []int) fit.Gone {
	parts := []fit.Gone{c.leaving[c.node.Name]}
	for _, i := range set {
		parts = append(parts, c.victims[i].gone[c.node.Name])
	}
	return fit.Union(parts...)
}

func (c *candidate) mayFit(set []int) bool {
	asker := c.Asker
	asker.Gone = map[string]fit.Gone{c.node.Name: c.gone(set)}
	free := fit.FreeOf(c.node, c.Reservations[c.node.Name], &asker)
	return free.Lacks(c.Amounts) == ""
}

func (c *candidate) fits(set []int) (needed []int, ok bool) {
	return set, c.filter(c.node.Name, c.gone(set).UIDs)
}
