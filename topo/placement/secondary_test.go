package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// unlike is a gang of unlike pods: masters and workers, and what nodes have of
// processors and GPUs.
type unlike struct {
	f       *forest
	free    [][2]int32
	needs   [2][2]int32
	masters int
	workers int
}

func (c *unlike) fit(class int) []int32 {
	var out []int32
	for _, free := range c.free {
		out = append(out, c.most(free, class))
	}
	return out
}

func (c *unlike) most(free [2]int32, class int) int32 {
	n := free[0] / c.needs[class][0]
	if gpus := c.needs[class][1]; gpus > 0 {
		n = min(n, free[1]/gpus)
	}
	return n
}

func (c *unlike) together(node int32, pods []int32) bool {
	for r := range 2 {
		if pods[0]*c.needs[0][r]+pods[1]*c.needs[1][r] > c.free[node][r] {
			return false
		}
	}
	return true
}

// holds reports whether a part of the tree takes the gang, by trying every way
// to distribute the masters.
func (c *unlike) holds(p *part) bool {
	nodes := p.nodes()
	var try func(i, masters, workers int) bool
	try = func(i, masters, workers int) bool {
		if i == len(nodes) {
			return masters == 0 && workers <= 0
		}
		free := c.free[nodes[i]]
		for m := 0; m <= masters && int32(m) <= c.most(free, 0); m++ {
			left := [2]int32{free[0] - int32(m)*c.needs[0][0], free[1] - int32(m)*c.needs[0][1]}
			if try(i+1, masters-m, workers-int(c.most(left, 1))) {
				return true
			}
		}
		return false
	}
	return try(0, c.masters, c.workers)
}

// tier is the lowest in which a part takes the unlike; -1 if none does.
func (c *unlike) tier() int {
	best := -1
	for _, p := range c.f.root.all() {
		if (best < 0 || p.tier < best) && c.holds(p) {
			best = p.tier
		}
	}
	return best
}

func newUnlike(rng *rand.Rand, masters int) *unlike {
	c := &unlike{f: plant(rng, 1+rng.IntN(3), 3+rng.IntN(6)), masters: masters, workers: 1 + rng.IntN(8)}
	for range c.f.nodes {
		c.free = append(c.free, [2]int32{int32(rng.IntN(24)), int32(rng.IntN(9))})
	}
	c.needs = [2][2]int32{
		{int32(1 + rng.IntN(8)), int32(rng.IntN(3))},
		{int32(1 + rng.IntN(4)), int32(1 + rng.IntN(4))},
	}
	return c
}

func (c *unlike) place(t *testing.T) (int, error) {
	t.Helper()
	tree, err := placement.New(c.f.groups)
	if err != nil {
		t.Fatal(err)
	}
	plan, rejection := placement.Place(tree, &placement.Gang{Tasks: []placement.Task{
		{Name: "master", Class: 0, Pods: c.masters, GPUs: int(c.needs[0][1])},
		{Name: "worker", Class: 1, Pods: c.workers, GPUs: int(c.needs[1][1])},
	}}, &placement.Capacity{Fit: [][]int32{c.fit(0), c.fit(1)}, Together: c.together})
	return plan.Group.Tier, rejection
}

// A master and its workers reach the lowest tier that holds both; of gangs with many secondary pods
// few miss it.
func TestSecondaryPodsAreNearlyOptimal(t *testing.T) {
	for _, most := range []int{1, 5} {
		plans, lost, higher := 0, 0, 0
		for seed := range uint64(6000) {
			rng := rand.New(rand.NewPCG(seed, 3))
			c := newUnlike(rng, 1+rng.IntN(most))
			if c.needs[0][1] > int32(c.workers)*c.needs[1][1] {
				continue // Then the workers are the secondary pods.
			}
			tier, rejection := c.place(t)
			want := c.tier()
			switch {
			case want < 0 && rejection == nil:
				t.Fatalf("seed %d: planned what does not fit: %+v", seed, c)
			case want < 0:
				continue
			case rejection != nil:
				lost++
			case tier > want:
				higher++
			case tier < want:
				t.Fatalf("seed %d: tier %d, and %d is the lowest: %+v", seed, tier, want, c)
			}
			plans++
		}
		allowed := plans / 100
		if most == 1 {
			allowed = 0
		}
		if plans < 1500 || lost > allowed || higher > allowed {
			t.Errorf("of %d gangs that fit %d are rejected and %d reach a higher tier", plans, lost, higher)
		}
	}
}

// Groups that have room for the workers alone do not hide the one that has
// room for the master too, however many they are.
func TestSecondaryPodAmongManyGroups(t *testing.T) {
	var leaves []v1alpha1.Group
	var one []int32
	for i := range 60 {
		names := []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
		if i == 50 {
			names = append(names, "c")
		}
		leaves = append(leaves, of("leaf", fmt.Sprintf("leaf-%02d", i), nodes(names...)...))
		for range names {
			one = append(one, 1)
		}
	}
	tree, err := placement.New(leaves)
	if err != nil {
		t.Fatal(err)
	}
	nine := make([]int32, len(one))
	for i := range nine {
		nine[i] = 9
	}
	two := make([]int32, len(one))
	for i := range two {
		two[i] = 2
	}
	master := append([]placement.Task{{Name: "master", Class: 1, Pods: 1}}, workers(2)...)
	masters := append([]placement.Task{{Name: "master", Class: 1, Pods: 2}}, workers(2)...)
	for _, tt := range []struct {
		name     string
		tasks    []placement.Task
		workers  []int32
		together func(int32, []int32) bool
		want     outcome
	}{
		{"one leaf has room for a master", master, one, nil, outcome{[]int32{102, 100, 101}, "leaf leaf-50", ""}},
		{"one node has room for the workers, none for a master", master, two, nil, outcome{[]int32{1, 0, 0}, "leaf leaf-00", ""}},
		{"the same, two masters", masters, two, nil, outcome{[]int32{1, 1, 0, 0}, "leaf leaf-00", ""}},
		{
			"every node has room for one master", masters, two, func(_ int32, pods []int32) bool { return pods[1] <= 1 },
			outcome{[]int32{0, 1, 0, 0}, "leaf leaf-00", ""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := placeOn(tree, placement.Gang{Tasks: tt.tasks}, placement.Capacity{
				Fit: [][]int32{tt.workers, nine}, Together: tt.together,
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
