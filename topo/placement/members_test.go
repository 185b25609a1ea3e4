package placement_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/topo/placement"
)

// What is left of a gang goes into the lowest group around its members that
// holds it, and there into as few groups without members as possible.
func TestTheRestGoesToItsMembers(t *testing.T) {
	plans := 0
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		f := plant(rng, 1+rng.IntN(3), 3+rng.IntN(10))
		tree, err := placement.New(f.groups)
		if err != nil {
			t.Fatal(err)
		}
		q := question{f: f, block: 1, fit: make([]int32, f.nodes)}
		for i := range q.fit {
			q.fit[i] = int32(rng.IntN(4))
		}
		g := placement.Gang{Tasks: []placement.Task{{Pods: 2 + rng.IntN(8), GPUs: 1}}}
		rest := g.Tasks[0].Pods
		member := make([]int32, f.nodes)
		for rank := range 1 + rng.IntN(rest-1) {
			node := int32(rng.IntN(f.nodes))
			member[node]++
			g.Placed = append(g.Placed, placement.Member{Rank: rank, Node: node})
			rest--
		}
		plan, rejection := placement.Place(tree, &g, &placement.Capacity{Fit: [][]int32{q.fit}})
		if want := q.room(f.root) >= rest; (rejection == nil) != want {
			t.Fatalf("seed %d: %v, and room for %d", seed, rejection, q.room(f.root))
		}
		if rejection != nil {
			continue
		}
		plans++
		in := reach(f.root, member)
		for q.room(in) < rest {
			in = in.parent
		}
		all := takes(f.nodes, plan)
		if at := reach(f.root, all); at != in {
			t.Fatalf("seed %d: the gang reaches %q, and %q holds it: %v beside %v of %v", seed, at.name, in.name, all, member, q.fit)
		}
		for i := range all {
			all[i] -= member[i]
		}
		if in.node < 0 {
			q.beside(t, in, all, member)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if plans < 2000 {
		t.Errorf("%d plans", plans)
	}
}

// beside checks that a part's children with members are filled before others
// are opened, and that no more of either kind are used than must be.
func (q *question) beside(t *testing.T, in *part, take, member []int32) {
	t.Helper()
	var near, far []int
	rest, taken, got := used(in, take), 0, [2]int{}
	for _, c := range in.children {
		n := used(c, take)
		with := 0
		if used(c, member) > 0 {
			near = append(near, q.room(c))
			taken += n
			with = 1
		} else {
			far = append(far, q.room(c))
		}
		if n > 0 {
			got[with]++
		}
	}
	room := 0
	for _, n := range near {
		room += n
	}
	want := [2]int{0, fewest(near, min(rest, room))}
	if rest > room {
		want = [2]int{fewest(far, rest-room), got[1]}
		if taken != room {
			t.Errorf("in %q %d of %d pods are beside members, and others are elsewhere", in.name, taken, room)
		}
	}
	if got != want {
		t.Errorf("in %q %v groups without and with members get pods, %v would do: %v beside %v of %v", in.name, got, want, take, member, q.fit)
	}
}

// fewest is how many of the rooms hold n pods.
func fewest(rooms []int, n int) (k int) {
	slices.Sort(rooms)
	for i := len(rooms) - 1; n > 0; i-- {
		n -= rooms[i]
		k++
	}
	return k
}
