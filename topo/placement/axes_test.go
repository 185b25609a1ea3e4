package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// racks is a fleet with two axes: node i is on leaf[i] and in domain[i], both ranges.
type racks struct {
	leaf, domain, fit []int
	groups, domains   []v1alpha1.Group
}

func name(kind string, i int) string { return fmt.Sprintf("%s-%02d", kind, i) }

// newRacks makes the answers of topo-master: leaves with the domains that are whole in
// one, under two spines or none, and all domains.
func newRacks(rng *rand.Rand) *racks {
	r := &racks{}
	for i, leaf, domain := 0, 0, 0; i < 6+rng.IntN(10); i++ {
		if i > 0 && rng.IntN(4) == 0 {
			leaf++
		}
		if i > 0 && rng.IntN(4) == 0 {
			domain++
		}
		r.leaf, r.domain, r.fit = append(r.leaf, leaf), append(r.domain, domain), append(r.fit, rng.IntN(3))
	}
	r.answer(rng.IntN(2) == 0)
	return r
}

func (r *racks) answer(spines bool) {
	leaves := map[int]map[int]bool{} // Of each domain.
	for i, d := range r.domain {
		if leaves[d] == nil {
			leaves[d] = map[int]bool{}
		}
		leaves[d][r.leaf[i]] = true
	}
	into := func(list []v1alpha1.Group, kind, group string) ([]v1alpha1.Group, *v1alpha1.Group) {
		at := slices.IndexFunc(list, func(g v1alpha1.Group) bool { return g.Name == group })
		if at < 0 {
			at = len(list)
			list = append(list, v1alpha1.Group{Name: group, Kind: kind, Status: v1alpha1.StatusReady})
		}
		return list, &list[at]
	}
	for i := range r.leaf {
		node := v1alpha1.Group{Name: name("n", i), Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady}
		var domain, leaf, nested *v1alpha1.Group
		r.domains, domain = into(r.domains, "nvlink", name("nvlink", r.domain[i]))
		domain.Child = append(domain.Child, node)
		list := &r.groups
		if spines {
			var spine *v1alpha1.Group
			r.groups, spine = into(r.groups, "spine", name("spine", r.leaf[i]/2))
			list = &spine.Child
		}
		*list, leaf = into(*list, "leaf", name("leaf", r.leaf[i]))
		if len(leaves[r.domain[i]]) == 1 {
			leaf.Child, nested = into(leaf.Child, "nvlink", domain.Name)
			nested.Child = append(nested.Child, node)
		} else {
			leaf.Child = append(leaf.Child, node)
		}
	}
}

// fewest is in how many groups of one axis a gang of n pods must be inside one group of
// the other, at least: 0 if no group holds it.
func (r *racks) fewest(in, over []int, n int) int {
	best := 0
	for g := range slices.Max(in) + 1 {
		room := map[int]int{}
		for i, fit := range r.fit {
			if in[i] == g {
				room[over[i]] += fit
			}
		}
		left, count := n, 0
		for _, most := range slices.Backward(slices.Sorted(values(room))) {
			if left > 0 {
				left -= most
				count++
			}
		}
		if left <= 0 && (best == 0 || count < best) {
			best = count
		}
	}
	return best
}

func values(m map[int]int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// spans is how many groups of an axis a plan is in.
func spans(tree *placement.Tree, plan placement.Plan, axis []int) int {
	in := map[int]bool{}
	for _, id := range plan.Nodes {
		var i int
		_, _ = fmt.Sscanf(tree.Name(id), "n-%02d", &i)
		in[axis[i]] = true
	}
	return len(in)
}

// place places n pods on a tree of the fleet.
func (r *racks) place(t *testing.T, groups []v1alpha1.Group, n, slice int, require string) (*placement.Tree, placement.Plan, error) {
	t.Helper()
	tree, err := placement.New(groups)
	if err != nil {
		t.Fatal(err)
	}
	if tree.Len() != len(r.fit) {
		t.Fatalf("%d nodes of %d", tree.Len(), len(r.fit))
	}
	room := placement.Capacity{Fit: [][]int32{make([]int32, tree.Len())}}
	for i, fit := range r.fit {
		id, _ := tree.ID(name("n", i))
		room.Fit[0][id] = int32(fit)
	}
	plan, err := placement.Place(tree, &placement.Gang{
		Tasks: []placement.Task{{Pods: n, GPUs: 1}}, Require: require, Slice: slice,
	}, &room)
	return tree, plan, err
}

// On both axes: a gang that one NVLink domain holds is in one, on as few leaves as any
// domain allows; one that must be on a leaf is on one, in as few domains as possible;
// and every slice is in one domain.
func TestPlacementOnBothAxes(t *testing.T) {
	crossed := 0
	for seed := range uint64(3000) {
		r := newRacks(rand.New(rand.NewPCG(seed, 9)))
		trees := placement.NewAxes(r.groups, placement.Crossing(r.groups, r.domains))
		if trees == nil {
			continue
		}
		crossed++
		n := 1 + int(seed%7)
		for _, require := range []string{"", "nvlink"} {
			want := r.fewest(r.domain, r.leaf, n)
			tree, plan, err := r.place(t, trees.NVLink, n, 0, require)
			switch {
			case want == 0 && require != "" && err == nil:
				t.Fatalf("seed %d: %d pods in one domain, which none holds", seed, n)
			case want == 0:
			case err != nil:
				t.Fatalf("seed %d: %v", seed, err)
			case spans(tree, plan, r.domain) != 1 || spans(tree, plan, r.leaf) != want:
				t.Fatalf("seed %d: %d pods in %d domains on %d leaves, want one on %d: %+v", seed, n,
					spans(tree, plan, r.domain), spans(tree, plan, r.leaf), want, r)
			}
		}
		want := r.fewest(r.leaf, r.domain, n)
		tree, plan, err := r.place(t, trees.Fabric, n, 0, "leaf")
		switch {
		case (want == 0) != (err != nil):
			t.Fatalf("seed %d: on one leaf %v, want %d", seed, err, want)
		case err == nil && (spans(tree, plan, r.leaf) != 1 || spans(tree, plan, r.domain) != want):
			t.Fatalf("seed %d: %d pods on %d leaves in %d domains, want one and %d: %+v", seed, n,
				spans(tree, plan, r.leaf), spans(tree, plan, r.domain), want, r)
		}
		r.slices(t, trees, seed)
	}
	if crossed < 1000 {
		t.Errorf("only %d fleets with a domain across leaves", crossed)
	}
}

// slices places blocks of three pods: there is a plan if the domains hold enough of
// them, and each is in one.
func (r *racks) slices(t *testing.T, trees *placement.Axes, seed uint64) {
	t.Helper()
	const block = 3
	room, blocks := map[int]int{}, 0
	for i, fit := range r.fit {
		room[r.domain[i]] += fit
	}
	for _, n := range room {
		blocks += n / block
	}
	if blocks == 0 {
		return
	}
	tree, plan, err := r.place(t, trees.Whole, block*blocks, block, "")
	if err != nil {
		t.Fatalf("seed %d: %d slices: %v", seed, blocks, err)
	}
	for ranks := range slices.Chunk(plan.Nodes, block) {
		if n := spans(tree, placement.Plan{Nodes: ranks}, r.domain); n != 1 {
			t.Fatalf("seed %d: a slice is in %d domains", seed, n)
		}
	}
}
