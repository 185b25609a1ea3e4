package placement_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// world is a random topology with nodes in groups, beside groups and in none, and
// what its nodes have: processors and GPUs.
type world struct {
	groups []v1alpha1.Group
	tree   *placement.Tree
	// around are the names of the groups around each node, by kind.
	around []map[string]string
	free   [][2]int32
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	t.Helper()
	w := &world{}
	names := 0
	node := func() v1alpha1.Group {
		names++
		return v1alpha1.Group{Name: fmt.Sprint("n", names), Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady}
	}
	kinds := []string{"nvlink", "leaf", "spine"}
	var grow func(level int) v1alpha1.Group
	grow = func(level int) v1alpha1.Group {
		names++
		g := v1alpha1.Group{Name: fmt.Sprint(kinds[level], names), Kind: kinds[level]}
		for range rng.IntN(4) {
			if level > 0 && rng.IntN(4) > 0 {
				g.Child = append(g.Child, grow(rng.IntN(level)))
			} else {
				g.Child = append(g.Child, node())
			}
		}
		return g
	}
	for range 1 + rng.IntN(4) {
		if rng.IntN(4) == 0 {
			w.groups = append(w.groups, node())
		} else {
			w.groups = append(w.groups, grow(rng.IntN(3)))
		}
	}
	w.groups = append(w.groups, node())
	tree, err := placement.New(w.groups)
	if err != nil {
		t.Fatal(err)
	}
	w.tree, w.around = tree, make([]map[string]string, tree.Len())
	var note func(in []v1alpha1.Group, around map[string]string)
	note = func(in []v1alpha1.Group, around map[string]string) {
		for _, g := range in {
			if g.Kind == v1alpha1.KindNode {
				id, _ := tree.ID(g.Name)
				mine := map[string]string{"node": g.Name}
				maps.Copy(mine, around)
				w.around[id] = mine
				continue
			}
			inner := map[string]string{g.Kind: g.Name, "lowest": g.Name}
			for k, v := range around {
				if _, ok := inner[k]; !ok {
					inner[k] = v
				}
			}
			note(g.Child, inner)
		}
	}
	note(w.groups, map[string]string{})
	for range tree.Len() {
		w.free = append(w.free, [2]int32{int32(rng.IntN(20)), int32(rng.IntN(9))})
	}
	return w
}

// ask is a random gang and the room for it.
type ask struct {
	gang  placement.Gang
	room  placement.Capacity
	needs [][2]int32
}

func (w *world) ask(rng *rand.Rand) *ask {
	a := &ask{}
	for c := range 1 + rng.IntN(3) {
		need := [2]int32{int32(1 + rng.IntN(5)), int32(rng.IntN(3)) * 2}
		if rng.IntN(3) == 0 && c > 0 {
			need = a.needs[0]
		}
		a.needs = append(a.needs, need)
		a.room.Fit = append(a.room.Fit, w.fit(need))
		a.gang.Tasks = append(a.gang.Tasks, placement.Task{Class: c, Pods: rng.IntN(8), GPUs: int(need[1])})
	}
	if rng.IntN(2) == 0 {
		a.room.Together = func(node int32, pods []int32) bool { return w.takes(node, a.needs, pods) }
	}
	ranks := 0
	for _, k := range a.gang.Tasks {
		ranks += k.Pods
	}
	if rng.IntN(3) == 0 {
		a.gang.Slice = 4 * (1 + rng.IntN(3))
	}
	a.gang.Require = []string{"", "", "leaf", "spine", "nvlink", "node"}[rng.IntN(6)]
	a.gang.Prefer = []string{"", "", "leaf", "spine", "what"}[rng.IntN(5)]
	if ranks > 0 && rng.IntN(2) == 0 {
		a.gang.MinMember = rng.IntN(ranks + 1)
	}
	for range rng.IntN(3) * rng.IntN(3) {
		a.gang.Avoid = append(a.gang.Avoid, int32(rng.IntN(w.tree.Len())))
	}
	if rng.IntN(2) == 0 {
		for rank := range ranks {
			if rng.IntN(3) == 0 {
				a.gang.Placed = append(a.gang.Placed, placement.Member{Rank: rank, Node: int32(rng.IntN(w.tree.Len()+1)) - 1})
			}
		}
	}
	return a
}

// fit is how many pods that need so much a node takes.
func (w *world) fit(need [2]int32) []int32 {
	var out []int32
	for _, free := range w.free {
		n := free[0] / need[0]
		if need[1] > 0 {
			n = min(n, free[1]/need[1])
		}
		out = append(out, n)
	}
	return out
}

func (w *world) takes(node int32, needs [][2]int32, pods []int32) bool {
	var sum [2]int32
	for class, n := range pods {
		sum[0] += n * needs[class][0]
		sum[1] += n * needs[class][1]
	}
	return sum[0] <= w.free[node][0] && sum[1] <= w.free[node][1]
}

// lowest names the lowest group of a node; a node in no group stands alone.
func (w *world) lowest(node int32) string {
	if g, ok := w.around[node]["lowest"]; ok {
		return g
	}
	return "node " + w.around[node]["node"]
}

func TestPlansAreSound(t *testing.T) {
	plans, rejections := 0, 0
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, rng)
		for range 3 {
			a := w.ask(rng)
			plan, rejection := placement.Place(w.tree, &a.gang, &a.room)
			fresh, err := placement.New(w.groups)
			if err != nil {
				t.Fatal(err)
			}
			want, fault := placement.Place(fresh, &a.gang, &a.room)
			if diff := cmp.Diff(want, plan) + cmp.Diff(message(fault), message(rejection)); diff != "" {
				t.Fatalf("seed %d: a plan depends on those before it (-fresh tree +used tree):\n%s", seed, diff)
			}
			if rejection != nil {
				rejections++
				if rejection.Error() == "" || plan.Nodes != nil {
					t.Fatalf("seed %d: %q, %+v", seed, rejection.Error(), plan)
				}
				continue
			}
			plans++
			for _, fault := range w.faults(a, &plan) {
				t.Errorf("seed %d: %s\ngang %+v\nfree %v\nplan %+v\nmap %v", seed, fault, a.gang, w.free, plan, w.groups)
			}
			if t.Failed() {
				return
			}
		}
	}
	if plans < 3000 || rejections < 3000 {
		t.Errorf("%d plans and %d rejections", plans, rejections)
	}
}

// faults is what is wrong with a plan, whatever would be best.
func (w *world) faults(a *ask, plan *placement.Plan) (out []string) {
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	var class []int
	for _, k := range a.gang.Tasks {
		for range k.Pods {
			class = append(class, k.Class)
		}
	}
	if len(plan.Nodes) != len(class) {
		fault("%d ranks of %d", len(plan.Nodes), len(class))
		return out
	}
	placed := map[int]int32{}
	for _, m := range a.gang.Placed {
		placed[m.Rank] = m.Node
	}
	pods, missing := 0, false
	load := map[int32][]int32{}
	for rank, node := range plan.Nodes {
		if at, ok := placed[rank]; ok {
			if node != at {
				fault("rank %d moves from %d to %d", rank, at, node)
			}
			pods++
			continue
		}
		if node == placement.None {
			missing = true
			continue
		}
		pods++
		if missing {
			fault("rank %d has a node, a lower one has none", rank)
		}
		if slices.Contains(a.gang.Avoid, node) {
			fault("rank %d is on node %d", rank, node)
		}
		if load[node] == nil {
			load[node] = make([]int32, len(a.needs))
		}
		load[node][class[rank]]++
	}
	if pods != plan.Pods || pods < a.gang.MinMember || missing && a.gang.MinMember == 0 {
		fault("%d pods, and has %d", pods, plan.Pods)
	}
	for node, n := range load {
		if !w.takes(node, a.needs, n) {
			fault("node %d takes no %v", node, n)
		}
	}
	w.bounds(a, plan, placed, fault)
	w.blocks(a, plan, placed, fault)
	return out
}

// bounds checks the required kind.
func (w *world) bounds(a *ask, plan *placement.Plan, placed map[int]int32, fault func(string, ...any)) {
	if a.gang.Require == "" {
		return
	}
	members := map[string]bool{}
	for _, node := range placed {
		if node >= 0 {
			if g, ok := w.around[node][a.gang.Require]; ok {
				members[g] = true
			}
		}
	}
	planned := map[string]bool{}
	for rank, node := range plan.Nodes {
		if _, was := placed[rank]; was || node < 0 {
			continue
		}
		g, ok := w.around[node][a.gang.Require]
		if !ok {
			fault("rank %d is in no %s", rank, a.gang.Require)
		}
		if len(members) > 0 && !members[g] {
			fault("rank %d is in %s, members are in %v", rank, g, members)
		}
		planned[g] = true
	}
	if len(planned) > 1 && len(members) < 2 {
		fault("the gang is in %v", planned)
	}
}

// blocks checks that no block is in two lowest groups.
func (w *world) blocks(a *ask, plan *placement.Plan, placed map[int]int32, fault func(string, ...any)) {
	if a.gang.Slice == 0 {
		return
	}
	gpus := 0
	members, planned := map[int]map[string]bool{}, map[int]map[string]bool{}
	add := func(to map[int]map[string]bool, block int, node int32) {
		if to[block] == nil {
			to[block] = map[string]bool{}
		}
		to[block][w.lowest(node)] = true
	}
	rank := 0
	for _, k := range a.gang.Tasks {
		for range k.Pods {
			if k.GPUs > 0 {
				if at, was := placed[rank]; was && at >= 0 {
					add(members, gpus/a.gang.Slice, at)
				} else if !was && plan.Nodes[rank] >= 0 {
					add(planned, gpus/a.gang.Slice, plan.Nodes[rank])
				}
			}
			gpus += k.GPUs
			rank++
		}
	}
	for block, in := range planned {
		if len(in) > 1 {
			fault("block %d is in %v", block, in)
		}
		for g := range in {
			if len(members[block]) > 0 && !members[block][g] {
				fault("block %d goes to %v, its members are in %v", block, in, members[block])
			}
		}
	}
}
