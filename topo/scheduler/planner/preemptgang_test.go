package planner

import (
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

var update = flag.Bool("update", false, "write the results in testdata")

const gpu = "nvidia.com/gpu"

// withGPUs is a node with eight GPUs.
func withGPUs(name string, labels map[string]string, pods ...*corev1.Pod) *Node {
	allocatable := corev1.ResourceList{gpu: resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110")}
	return NewNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Allocatable: allocatable},
	}, pods...)
}

// requesting is a pod that requests GPUs.
func requesting(name string, gpus int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{gpu: *resource.NewQuantity(int64(gpus), resource.DecimalSI)},
	}}}
	return p
}

// prey is a pod on a node: "gang/name gpus priority hours", of no gang without a gang. It
// began to run so many hours ago.
func prey(tb testing.TB, text string) (p *corev1.Pod, in string) {
	tb.Helper()
	var name string
	var n, priority, hours int
	if _, err := fmt.Sscanf(text, "%s %d %d %d", &name, &n, &priority, &hours); err != nil {
		tb.Fatalf("%q: %v", text, err)
	}
	in, own, ok := strings.Cut(name, "/")
	if !ok {
		in, own = "", name
	}
	p = requesting(own, n)
	p.Labels = map[string]string{"gang": in, "pod": own}
	p.Status.StartTime = new(metav1.NewTime(time.Unix(0, 0).Add(-time.Duration(hours) * time.Hour)))
	p.Spec.Priority = new(int32(priority))
	return p, in
}

// hunt are nodes with pods, and what is known of these.
type hunt struct {
	nodes   []*Node
	cluster Cluster
}

func newHunt(tb testing.TB, nodes [][]string) *hunt {
	tb.Helper()
	h := &hunt{cluster: Cluster{GangOf: map[types.UID]types.NamespacedName{}}}
	for i, pods := range nodes {
		var on []*corev1.Pod
		for _, text := range pods {
			terminating := strings.HasPrefix(text, "-")
			p, in := prey(tb, strings.TrimPrefix(text, "-"))
			p.Spec.NodeName = fmt.Sprint("n", i)
			if terminating {
				p.DeletionTimestamp = new(metav1.Now())
			}
			if in != "" {
				h.cluster.GangOf[p.UID] = types.NamespacedName{Namespace: "default", Name: in}
			}
			on = append(on, p)
		}
		h.nodes = append(h.nodes, withGPUs(fmt.Sprint("n", i), nil, on...))
	}
	return h
}

// allow makes a budget of a gang's pods.
func (h *hunt) allow(gang string, evictions int32) {
	h.cluster.Budgets = append(h.cluster.Budgets, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: gang},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gang": gang}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: evictions},
	})
}

// request is of a gang of n pods of priority 10.
func (h *hunt) request(n, gpus int) *Request {
	g := Gang{Key: types.NamespacedName{Namespace: "default", Name: "high"}, MinMember: n}
	for i := range n {
		p := requesting(fmt.Sprint("high-", i), gpus)
		p.Spec.Priority = new(int32(10))
		g.Members = append(g.Members, Member{Pod: p, Class: ClassOf(p, nil), GPUs: gpus})
	}
	return &Request{Gangs: []Gang{g}, Query: Query{Nodes: h.nodes}}
}

func newPlanner() *Planner {
	return New(topologyclient.New(topologyclient.Options{}), gang.Place, sgpu.GPUs{gpu})
}

func names(pods []*corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestPreempt: the fewest gangs leave, then those of the lowest priority, then the youngest, whole. The file has the number
// of pods, with 8 GPUs each, disruption budgets, the pods on every node as prey has them, "-" before those that terminate,
// and who leaves.
func TestPreempt(t *testing.T) {
	golden.Rows(t, "testdata/victims.txt", *update, func(text string) string {
		var nodes [][]string
		pods, budgets := 0, map[string]int32{}
		for line := range strings.Lines(text) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch word {
			case "node":
				nodes = append(nodes, strings.Split(rest, ", "))
			case "pods":
				pods = int(number(t, rest))
			default:
				gang, allowed, _ := strings.Cut(rest, " ")
				budgets[gang] = number(t, allowed)
			}
		}
		h := newHunt(t, nodes)
		for gang, n := range budgets {
			h.allow(gang, n)
		}
		return leaving(newPlanner().Preempt(t.Context(), h.request(pods, 8), &h.cluster))
	})
}

func number(tb testing.TB, text string) int32 {
	tb.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	return int32(n)
}

func leaving(plan Plan) string {
	if plan.Places == nil {
		return "no plan"
	}
	return names(plan.Leaving)
}

// TestWhoPreempts: a gang with a waiting member that never preempts evicts nobody. The policy of a running member does
// not matter.
func TestWhoPreempts(t *testing.T) {
	h := newHunt(t, [][]string{{"a/a0 8 0 1"}, {"a/a1 8 0 1"}})
	r := h.request(2, 8)
	r.Gangs[0].Members[1].Pod.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	if got := leaving(newPlanner().Preempt(t.Context(), r, &h.cluster)); got != "no plan" {
		t.Error(got)
	}
	h = newHunt(t, [][]string{{"x 8 10 1"}, {"a/a0 8 5 1"}})
	r = h.request(2, 8)
	m := &r.Gangs[0].Members[0]
	m.Node, m.Pod.Spec.Priority, m.Pod.Spec.PreemptionPolicy = "n0", new(int32(0)), new(corev1.PreemptNever)
	if got := leaving(newPlanner().Preempt(t.Context(), r, &h.cluster)); got != "a0" {
		t.Error(got)
	}
}

// A native PodGroup is a gang too, and another one than a gang of labels of its name.
func TestPreemptANativePodGroup(t *testing.T) {
	h := newHunt(t, [][]string{{"a 8 0 1"}, {"g/b 8 0 3"}, {"c 8 0 2"}})
	for _, i := range []int{0, 2} {
		h.nodes[i].Pods[0].Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("g")}
	}
	for pods := 1; pods <= 2; pods++ {
		if got := names(newPlanner().Preempt(t.Context(), h.request(pods, 8), &h.cluster).Leaving); got != "a c" {
			t.Errorf("for %d %s leave, want a c", pods, got)
		}
	}
}

// random is a small cluster with gangs of one to four pods.
func random(t *testing.T, dice *rand.Rand) *hunt {
	t.Helper()
	nodes, left := make([][]string, 3+dice.IntN(4)), 0
	free := make([]int, len(nodes))
	for i := range free {
		free[i] = 8
	}
	for g := range 2 + dice.IntN(5) {
		priority, hours := dice.IntN(3), dice.IntN(4)
		for i := range 1 + dice.IntN(4) {
			at, n := dice.IntN(len(nodes)), []int{2, 4, 8}[dice.IntN(3)]
			if free[at] >= n {
				free[at] -= n
				nodes[at] = append(nodes[at], fmt.Sprintf("g%d/g%d-%d %d %d %d", g, g, i, n, priority, hours))
				left++
			}
		}
	}
	h := newHunt(t, nodes)
	for g := range 3 {
		if dice.IntN(3) == 0 {
			h.allow(fmt.Sprint("g", g), int32(dice.IntN(3)))
		}
	}
	return h
}

// The search finds what a look at every set of victims does; without its trials it still
// finds a set of which none is left out.
func TestPreemptIsExactWhereItIsSmall(t *testing.T) {
	dice, found := rand.New(rand.NewPCG(1, 2)), 0
	for range 300 {
		h := random(t, dice)
		r := h.request(1+dice.IntN(4), []int{2, 4, 8}[dice.IntN(3)])
		if newPlanner().Plan(r).Reason == "" {
			continue
		}
		search := func() *eviction {
			return newEviction(newPlanner(), r, ReadVictims(r.Nodes, &h.cluster, 10, r.Gangs...))
		}
		all := search()
		var best []int
		enough := false
		for mask := range 1 << len(all.victims) {
			var set []int
			for m := mask; m > 0; m &= m - 1 {
				set = append(set, bits.TrailingZeros(uint(m)))
			}
			if _, fits := all.fits(set); fits && (!enough || all.compare(set, best) < 0) {
				best, enough = set, true
			}
		}
		set, ok := search().choose(t.Context())
		if ok != enough || !slices.Equal(set, best) {
			t.Fatalf("%v, want %v of %d", set, best, len(all.victims))
		}
		bounded := search()
		bounded.sets = maxSets
		if set, ok = bounded.choose(t.Context()); ok != enough {
			t.Fatalf("bounded it finds %v", set)
		}
		if !enough {
			continue
		}
		found++
		for i := range set {
			if _, ok := bounded.fits(slices.Concat(set[:i], set[i+1:])); ok {
				t.Errorf("%v without %d is enough", set, set[i])
			}
		}
	}
	if found < 50 {
		t.Errorf("%d of 300 clusters had victims", found)
	}
}

// crowded are nodes that are full of pods of no gang, or of gangs of eight nodes.
func crowded(tb testing.TB, nodes int, gangs bool) *hunt {
	tb.Helper()
	on := make([][]string, nodes)
	for i := range on {
		on[i] = []string{fmt.Sprintf("a%d 4 0 1", 2*i), fmt.Sprintf("a%d 4 0 1", 2*i+1)}
		if gangs {
			on[i] = []string{fmt.Sprintf("g%d/a%d 8 0 1", i%(nodes/8), i)}
		}
	}
	return newHunt(tb, on)
}

// On many nodes the search is bounded by its plans.
func TestPreemptIsBounded(t *testing.T) {
	for _, tt := range []struct {
		gangs bool
		want  int
	}{{false, 80}, {true, 5}} {
		h := crowded(t, 304, tt.gangs)
		r := h.request(40, 8)
		e := newEviction(newPlanner(), r, ReadVictims(r.Nodes, &h.cluster, 10))
		if set, ok := e.choose(t.Context()); len(set) != tt.want || !ok {
			t.Errorf("%d victims, want %d", len(set), tt.want)
		}
		if e.trials > 3*maxTrials {
			t.Errorf("%d plans", e.trials)
		}
	}
}

// How long the search of docs/concepts/scheduling.md takes.
func BenchmarkPreempt(b *testing.B) {
	for _, gangs := range []bool{false, true} {
		b.Run(fmt.Sprintf("gangs=%t", gangs), func(b *testing.B) {
			h, p := crowded(b, 4608, gangs), newPlanner()
			for b.Loop() {
				if p.Preempt(b.Context(), h.request(128, 8), &h.cluster).Places == nil {
					b.Fatal("no plans")
				}
			}
		})
	}
}
