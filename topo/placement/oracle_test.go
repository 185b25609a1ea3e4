package placement_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// The oracle knows trees as the topology has them, and plans as assignments. It
// tries all of them.

// part is a group or a node of the oracle's tree.
type part struct {
	name     string
	tier     int
	parent   *part
	children []*part // Groups, or the nodes of a lowest group.
	node     int32   // -1 for a group.
}

func (p *part) lowest() bool { return p.node < 0 && (len(p.children) == 0 || p.children[0].node >= 0) }

func (p *part) nodes() []int32 {
	if p.node >= 0 {
		return []int32{p.node}
	}
	var out []int32
	for _, c := range p.children {
		out = append(out, c.nodes()...)
	}
	return out
}

func (p *part) all() []*part {
	out := []*part{p}
	for _, c := range p.children {
		out = append(out, c.all()...)
	}
	return out
}

func (p *part) homes() []*part {
	return slices.DeleteFunc(p.all(), func(q *part) bool { return !q.lowest() })
}

// forest is a random topology of uniform depth, with the oracle's view of it.
type forest struct {
	groups []v1alpha1.Group
	root   *part
	nodes  int
}

func plant(rng *rand.Rand, depth, nodes int) *forest {
	f := &forest{root: &part{node: -1, tier: depth + 1}}
	kinds := []string{"node", "leaf", "spine", "pod"}
	var grow func(in *part, tier int) []v1alpha1.Group
	grow = func(in *part, tier int) []v1alpha1.Group {
		var out []v1alpha1.Group
		for i := range 1 + rng.IntN(3) {
			if f.nodes == nodes {
				break
			}
			c := &part{node: -1, tier: tier, parent: in}
			in.children = append(in.children, c)
			if tier == 0 {
				c.node, c.name = int32(f.nodes), fmt.Sprintf("n%02d", f.nodes)
				f.nodes++
				out = append(out, v1alpha1.Group{Name: c.name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady})
				continue
			}
			c.name = fmt.Sprintf("%s/%s-%d", in.name, kinds[tier], i)
			out = append(out, v1alpha1.Group{Name: c.name, Kind: kinds[tier], Child: grow(c, tier-1)})
		}
		return out
	}
	f.groups = grow(f.root, depth)
	return f
}

// question is what the oracle is asked: blocks of so many pods, in all n.
type question struct {
	f     *forest
	fit   []int32
	free  []int32
	block int
}

func (q *question) room(p *part) (sum int) {
	for _, n := range p.nodes() {
		sum += int(q.fit[n])
	}
	return sum
}

func (q *question) slots(p *part) (sum int) {
	if p.node >= 0 || p.lowest() {
		return q.room(p) / q.block
	}
	for _, c := range p.children {
		sum += q.slots(c)
	}
	return sum
}

// each calls do with every way to put n pods on the nodes of p.
func (q *question) each(p *part, n int, do func(take []int32)) {
	take := make([]int32, q.f.nodes)
	nodes, homes := p.nodes(), p.homes()
	var put func(i, left int)
	put = func(i, left int) {
		if i == len(nodes) {
			if left == 0 && q.aligned(homes, take, n%q.block) {
				do(take)
			}
			return
		}
		for k := 0; k <= min(left, int(q.fit[nodes[i]])); k++ {
			take[nodes[i]] = int32(k)
			put(i+1, left-k)
		}
		take[nodes[i]] = 0
	}
	put(0, n)
}

// aligned is true if every lowest group has whole blocks, and one of them
// the shorter one.
func (q *question) aligned(homes []*part, take []int32, short int) bool {
	seen := 0
	for _, h := range homes {
		switch used(h, take) % q.block {
		case 0:
		case short:
			seen++
		default:
			return false
		}
	}
	return short == 0 || seen == 1
}

func used(p *part, take []int32) (sum int) {
	for _, n := range p.nodes() {
		sum += int(take[n])
	}
	return sum
}

// reach is the tightest part inside p that holds all that is taken.
func reach(p *part, take []int32) *part {
	all := used(p, take)
	for {
		at := slices.IndexFunc(p.children, func(c *part) bool { return used(c, take) == all })
		if at < 0 {
			return p
		}
		p = p.children[at]
	}
}

// where is the first half of the objective of the package's comment: how good
// the group is that the gang reaches. Less is better.
func (q *question) where(at *part, take []int32) []int {
	key := []int{at.tier, 0}
	for _, c := range at.children {
		if !at.lowest() && used(c, take) > 0 {
			key[1]++
		}
	}
	for a := at; a != nil; a = a.parent {
		key = append(key, q.room(a))
		if a.node >= 0 && q.free != nil {
			key = append(key, int(q.free[a.node]))
		}
	}
	return key
}

// how is the other half: how good the gang's place in that group is.
func (q *question) how(at *part, take []int32) (key []int) {
	if at.node >= 0 {
		return nil
	}
	type size struct{ slots, room int }
	var sizes []size
	open := 0
	for _, c := range at.children {
		n := used(c, take)
		if n == 0 {
			continue
		}
		s := size{q.slots(c), q.room(c)}
		if at.lowest() {
			s = size{q.room(c), q.room(c)}
			if q.free != nil {
				s.room = int(q.free[c.node])
			}
		}
		if n < s.slots*q.block && !at.lowest() || n < q.room(c) && at.lowest() {
			open++
		}
		sizes = append(sizes, s)
	}
	slices.SortFunc(sizes, func(a, b size) int { return cmp.Or(b.slots-a.slots, b.room-a.room) })
	key = append(key, len(sizes))
	for _, s := range sizes {
		key = append(key, s.slots, s.room)
	}
	return append(key, open)
}

// best is the least key of all assignments of n pods inside p; nil if there is
// none.
func (q *question) best(p *part, n int, key func(take []int32) []int) (best []int) {
	q.each(p, n, func(take []int32) {
		if key := key(take); best == nil || key != nil && slices.Compare(key, best) < 0 {
			best = key
		}
	})
	return best
}

// proves checks that what is taken inside p is optimal there, and that what
// is taken inside every part of it is optimal for that part.
func (q *question) proves(t *testing.T, p *part, take []int32) {
	t.Helper()
	only := make([]int32, len(take))
	for _, n := range p.nodes() {
		only[n] = take[n]
	}
	n := used(p, only)
	if n == 0 {
		return
	}
	at := reach(p, only)
	where := func(take []int32) []int { return q.where(reach(p, take), take) }
	if got, want := where(only), q.best(p, n, where); slices.Compare(got, want) != 0 {
		t.Fatalf("%d pods in blocks of %d in %q: %v is taken of %v\n got key %v\nbest key %v", n, q.block, p.name, only, q.fit, got, want)
	}
	if at.node >= 0 {
		return
	}
	if at.lowest() {
		q = &question{f: q.f, fit: q.fit, free: q.free, block: 1}
	}
	how := func(take []int32) []int { return q.how(at, take) }
	if got, want := how(only), q.best(at, n, how); slices.Compare(got, want) != 0 {
		t.Fatalf("%d pods in blocks of %d over %q: %v is taken of %v\n got key %v\nbest key %v", n, q.block, at.name, only, q.fit, got, want)
	}
	for _, c := range at.children {
		q.proves(t, c, only)
	}
}

// takes is a plan's pods by node.
func takes(nodes int, plan placement.Plan) []int32 {
	out := make([]int32, nodes)
	for _, node := range plan.Nodes {
		if node >= 0 {
			out[node]++
		}
	}
	return out
}

func TestPlansAreOptimal(t *testing.T) {
	fits, rejections := 0, 0
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		// Many nodes with little room, or few with more.
		size, most := 3+rng.IntN(5), 1+rng.IntN(4)
		if rng.IntN(2) == 0 {
			size, most = 8+rng.IntN(5), 1
		}
		f := plant(rng, 1+rng.IntN(3), size)
		tree, err := placement.New(f.groups)
		if err != nil {
			t.Fatal(err)
		}
		q := question{f: f, block: 1 + rng.IntN(2)*rng.IntN(4), fit: make([]int32, f.nodes)}
		for i := range q.fit {
			q.fit[i] = int32(rng.IntN(most + 1))
		}
		if rng.IntN(2) == 0 {
			for _, n := range q.fit {
				q.free = append(q.free, n*3+int32(rng.IntN(3)))
			}
		}
		n := 1 + rng.IntN(max(1, min(12, q.room(f.root)+1)))
		if rng.IntN(2) == 0 { // Just too large for a lowest group.
			n = 1 + rng.IntN(2)
			for _, h := range f.root.homes() {
				n = max(n, q.room(h)+1)
			}
		}
		g := placement.Gang{Tasks: []placement.Task{{Name: "worker", Pods: n, GPUs: 8}}}
		if q.block > 1 {
			g.Slice = 8 * q.block
		}
		plan, rejection := placement.Place(tree, &g, &placement.Capacity{Fit: [][]int32{q.fit}, Free: q.free})
		best := q.best(f.root, n, func([]int32) []int { return []int{0} })
		if (rejection == nil) != (best != nil) {
			t.Fatalf("seed %d: %d pods, %v: rejection %v, best %v", seed, n, q.fit, rejection, best)
		}
		if rejection != nil {
			rejections++
			continue
		}
		fits++
		q.proves(t, f.root, takes(f.nodes, plan))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if at := reach(f.root, takes(f.nodes, plan)); at.name != plan.Group.Name || at.tier != plan.Group.Tier {
			t.Fatalf("seed %d: the plan has %+v, and reaches %q of tier %d", seed, plan.Group, at.name, at.tier)
		}
		contiguous(t, f.root, plan, q.block)
	}
	if fits < 3000 || rejections < 500 {
		t.Errorf("%d plans and %d rejections", fits, rejections)
	}
}

// contiguous checks that each group has consecutive ranks, around the end, and
// that each block is in one lowest group.
func contiguous(t *testing.T, root *part, plan placement.Plan, block int) {
	t.Helper()
	for _, p := range root.all() {
		in := map[int32]bool{}
		for _, n := range p.nodes() {
			in[n] = true
		}
		changes := 0
		for rank, node := range plan.Nodes {
			if next := plan.Nodes[(rank+1)%len(plan.Nodes)]; in[node] != in[next] {
				changes++
			}
			if p.lowest() && in[node] != in[plan.Nodes[rank/block*block]] {
				t.Fatalf("the block of rank %d is not in one group: %v", rank, plan.Nodes)
			}
		}
		if changes > 2 {
			t.Fatalf("the ranks in %q are not consecutive: %v", p.name, plan.Nodes)
		}
	}
}
