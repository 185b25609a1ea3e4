package week

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// strict checks every placement of a policy against the cluster's state.
type strict struct {
	Policy
	t     *testing.T
	plans int
}

func (s *strict) Place(c *cluster, a *Ask) []int32 {
	before := append([]int32(nil), c.free...)
	nodes := s.Policy.Place(c, a)
	if diff := cmp.Diff(before, c.free); diff != "" {
		s.t.Fatalf("%s changes the cluster: %s", s.Name(), diff)
	}
	if nodes == nil {
		return nil
	}
	s.plans++
	if len(nodes) != a.Pods {
		s.t.Fatalf("%s gives %d pods %d nodes", s.Name(), a.Pods, len(nodes))
	}
	for rank, n := range nodes {
		if a.Placed != nil && a.Placed[rank] != nowhere {
			if n != a.Placed[rank] {
				s.t.Fatalf("%s moves rank %d", s.Name(), rank)
			}
			continue
		}
		if before[n] -= a.GPUs; before[n] < 0 || c.down[n] {
			s.t.Fatalf("%s puts rank %d on node %d, which is full or down", s.Name(), rank, n)
		}
	}
	return nodes
}

func TestPoliciesAreSound(t *testing.T) {
	for _, policy := range Policies() {
		s := &strict{Policy: policy, t: t}
		r := Run(Small(), s, 1)
		if s.plans < 500 || r.Gangs < 100 || r.Used < 0.3 || r.Used > 1 || r.Groups < 1 || r.Tier < 0 {
			t.Errorf("%d plans, %+v", s.plans, r)
		}
	}
}

func TestAWeekRepeatsItself(t *testing.T) {
	if diff := cmp.Diff(Compare(Small(), Policies(), 2), Compare(Small(), Policies(), 2)); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	if cmp.Equal(Compare(Small(), Policies(), 2), Compare(Small(), Policies(), 3)) {
		t.Error("another seed is the same week")
	}
}

// What was possible is counted from free room, by hand here: three leaves of 1,
// 2 and 3 nodes, one of which is down and one half in use.
func TestPossible(t *testing.T) {
	c := newCluster(Plan{Leaves: []int{1, 2, 3}, Spines: 1}, 1)
	c.down[3], c.free[4] = true, 4
	for _, tt := range []struct{ pods, gpus, want int }{{1, 8, 1}, {2, 8, 1}, {3, 8, 2}, {4, 8, 3}, {4, 4, 1}, {7, 4, 2}} {
		if got := possible(c, &gang{pods: tt.pods, gpus: int32(tt.gpus)}); got != tt.want {
			t.Errorf("%d pods of %d GPUs: %d groups, want %d", tt.pods, tt.gpus, got, tt.want)
		}
	}
}

// A reservation by hand: of four nodes one is empty, two are in use until 2 h and one until 5 h. Three nodes are free
// together at 2 h, so that until then one node has room for what ends by then, and at 5 h for anything.
func TestProfile(t *testing.T) {
	const h = time.Hour
	w := &week{
		cluster:    newCluster(Plan{Leaves: []int{4}, Spines: 1}, 1),
		discipline: Discipline{Estimate: 2},
		running: map[*gang]bool{
			{nodes: []int32{1, 2}, ends: h}:      true,
			{nodes: []int32{3}, ends: h * 5 / 2}: true,
		},
	}
	p := newProfile(w)
	p.reserve(3, 4*h)
	for _, tt := range []struct {
		node  int32
		lasts time.Duration
		want  bool
	}{{0, 3 * h, false}, {0, 2 * h, true}, {0, h, true}, {1, 2 * h, true}, {3, 6 * h, true}, {3, 7 * h, true}} {
		if got := p.start([]int32{tt.node}, tt.lasts); got != tt.want {
			t.Errorf("node %d for %v: %v, want %v", tt.node, tt.lasts, got, tt.want)
		}
	}
	for _, n := range p.free {
		if n < 0 {
			t.Errorf("nodes are taken twice: %v from %v", p.free, p.at)
		}
	}
}

// No gang starts before an older one where the discipline is strict, and nothing else starts them in order.
func TestDisciplines(t *testing.T) {
	plan := Small()
	plan.Load = 1.2
	for _, d := range Disciplines()[:2] {
		r := run(plan, &Map{}, d, 1)
		var all [2]time.Duration
		all[0], _ = r.Wait(0)
		all[1], _ = r.Wait(1, 2, 3)
		if inOrder := all[0] > all[1]/2; inOrder != d.Strict {
			t.Errorf("%s: pods wait for %v, gangs for %v", d.Name, all[0], all[1])
		}
	}
	if r := Queue(plan, Disciplines()[:2], 1); !r[0].isFirst(r) || slices.Contains([]float64{r[0].Slowdown, r[1].Slowdown}, 0) {
		t.Errorf("%+v", r)
	}
}

// Gangs that remember where others failed leave a bad node, and suspect no other.
func TestBadNodeIsAvoided(t *testing.T) {
	bad := Troubles()[1]
	careless, avoiding := RepairOf(Small(), &bad, Careless, 1), RepairOf(Small(), &bad, Avoiding, 1)
	if share, most := avoiding.Within(); share != 1 || most == 0 || avoiding.Suspects > 0 || 2*avoiding.Failures > careless.Failures {
		t.Errorf("%d gangs on the bad node, %d failures where careless gangs have %d, %d healthy suspects",
			most, avoiding.Failures, careless.Failures, avoiding.Suspects)
	}
}
