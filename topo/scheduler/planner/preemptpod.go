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
	var best []int
	found := 0
	for _, c := range v.candidates(nodes) {
		over := found > 0 && v.violations(best) == 0 && (len(best) == 0 || len(best) == 1 && c.least >= best[0])
		if over || found >= maxCandidates || ctx.Err() != nil {
			break
		}
		c.filter = filter
		search := choice{Victims: v, room: c, among: c.on, maxTrials: maxNodeTrials}
		if set, ok := search.choose(ctx); ok {
			if found++; found == 1 || v.compare(set, best) < 0 {
				node, best = c.node, set
			}
		}
	}
	return node, v.pods(best)
}

// candidate is the room on one node.
type candidate struct {
	*Victims
	filter Filter
	node   string
	// on are the victims with pods on the node, and least the first of them; -1 if pods leave it.
	on    []int
	least int
}

func (v *Victims) candidates(nodes []*Node) (out []*candidate) {
	on := map[string][]int{}
	for i := range v.victims {
		for node := range v.victims[i].gone {
			on[node] = append(on[node], i)
		}
	}
	for _, node := range nodes {
		c := &candidate{Victims: v, node: node.Name, on: on[node.Name], least: -1}
		if !v.Leave(node.Name) {
			if len(c.on) == 0 {
				continue
			}
			c.least = c.on[0]
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b *candidate) int { return cmp.Compare(a.least, b.least) })
	return out
}

func (*candidate) mayFit([]int) bool { return true }

func (c *candidate) fits(set []int) (needed []int, ok bool) {
	gone := map[types.UID]bool{}
	maps.Copy(gone, c.leaving[c.node].UIDs)
	for _, i := range set {
		maps.Copy(gone, c.victims[i].gone[c.node].UIDs)
	}
	return set, c.filter(c.node, gone)
}
