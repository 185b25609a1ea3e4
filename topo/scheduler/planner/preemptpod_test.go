package planner

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// single returns the victims of a pod of no gang of priority 10, with nothing but amounts as filters.
func (h *hunt) single(gpus int) (*Victims, Filter) {
	p := h.request(1, gpus).Gangs[0].Members[0].Pod
	return ReadVictims(h.nodes, &h.cluster, 10), func(name string, gone map[types.UID]bool) bool {
		n := h.nodes[slices.IndexFunc(h.nodes, func(n *Node) bool { return n.Name == name })]
		var left Gone
		for _, pod := range n.Pods {
			if gone[pod.UID] {
				left.Add(pod.UID, Requests(pod))
			}
		}
		query := Query{UID: p.UID, Priority: 10, Gone: map[string]Gone{name: left}}
		free := query.Free(n)
		return free.Lacks(Requests(p)) == ""
	}
}

// The candidates that are looked at have what a look at every set on every node finds.
func TestSingleIsExact(t *testing.T) {
	dice, found := rand.New(rand.NewPCG(3, 4)), 0
	for range 500 {
		h := random(t, dice)
		v, filter := h.single([]int{2, 4, 8}[dice.IntN(3)])
		var want []int
		enough := false
		for _, n := range h.nodes {
			enoughOn := v.without(n.Name, filter)
			for mask := range 1 << len(v.victims) {
				var set []int
				for m := mask; m > 0; m &= m - 1 {
					set = append(set, bits.TrailingZeros(uint(m)))
				}
				if _, fits := enoughOn(set); fits && (!enough || v.compare(set, want) < 0) {
					want, enough = set, true
				}
			}
		}
		if enough && len(want) == 0 {
			continue // It needs no victims.
		}
		node, pods := v.Best(t.Context(), h.nodes, filter)
		if (node != "") != enough || names(pods) != names(v.pods(want)) {
			t.Fatalf("%s, want %s", names(pods), names(v.pods(want)))
		}
		if enough {
			found++
		}
	}
	if found < 50 {
		t.Errorf("%d of 500 clusters had victims", found)
	}
}

// Of a node of very many victims few sets are tried, and the best is found all the same if it is
// of the few large ones.
func TestSingleIsBounded(t *testing.T) {
	var on []string
	for i := range 8 {
		on = append(on, string(rune('a'+i))+" 1 0 1")
	}
	for i := range 40 {
		on = append(on, fmt.Sprintf("small%d 0 0 1", i))
	}
	h := newHunt(t, [][]string{on})
	v, filter := h.single(8)
	tried := 0
	_, pods := v.Best(t.Context(), h.nodes, func(node string, gone map[types.UID]bool) bool {
		tried++
		return filter(node, gone)
	})
	if got := names(pods); got != "a b c d e f g h" {
		t.Errorf("%q are evicted", got)
	}
	if tried > 3*maxNodeTrials {
		t.Errorf("%d sets were tried", tried)
	}
}
