package suspect

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// run is a run of a gang with a pod on each node, in minutes. It fails at its end, or goes on without one.
type run struct {
	gang       string
	nodes      string
	start, end float64
	// well reports that it ended without a failure.
	well bool
}

// pods returns the pods of a run: the last fails first, and all within two minutes.
func (r run) pods() (out []Pod) {
	nodes := strings.Fields(r.nodes)
	for i, node := range nodes {
		p := Pod{UID: types.UID(fmt.Sprint(r.gang, r.start, node)), Gang: r.gang, Node: node, Start: at(r.start)}
		if r.end > 0 {
			p.End = at(r.end)
			if !r.well {
				p.End, p.Failure = at(r.end+2*float64(len(nodes)-1-i)/float64(len(nodes))), "exit code 1"
			}
		}
		out = append(out, p)
	}
	return out
}

// fault is a fault of a node.
type fault struct {
	node  string
	since float64
}

// remember returns a memory of runs and faults, which it hears of in an order by chance if rng is not nil.
func remember(runs []run, faults []fault, rng *rand.Rand) *Memory {
	m, news := NewMemory(), []func(*Memory){}
	for _, r := range runs {
		for _, p := range r.pods() {
			before := p
			before.End, before.Failure = time.Time{}, ""
			news = append(news, func(m *Memory) { m.See(before) }, func(m *Memory) { m.See(p) })
		}
	}
	for _, f := range faults {
		news = append(news, func(m *Memory) { m.Node(f.node, []Fault{{Since: at(f.since), Reason: "XID 79"}}) })
	}
	if rng != nil {
		rng.Shuffle(len(news), func(i, j int) { news[i], news[j] = news[j], news[i] })
	}
	for _, say := range news {
		say(m)
	}
	var tree []v1alpha1.Group
	for group, nodes := range map[string]string{"a": "a1 a2 a3 a4 a5 a6", "b": "b1 b2"} {
		g := v1alpha1.Group{Name: group, Kind: "leaf"}
		for node := range strings.FieldsSeq(nodes) {
			g.Child = append(g.Child, v1alpha1.Group{Name: node, Kind: v1alpha1.KindNode})
		}
		tree = append(tree, g)
	}
	m.Group(tree)
	return m
}

// places returns the result in short: the states of the places and their evidence.
func places(m *Memory, minutes float64) string {
	var out []string
	for _, p := range m.Places(at(minutes)) {
		out = append(out, fmt.Sprintf("%s %s %d", p.State, p.Name, len(p.Evidence)))
	}
	return strings.Join(out, ", ")
}

// scenarios end with the result at a time, in minutes.
func scenarios() map[string]struct {
	runs   []run
	faults []fault
	now    float64
	want   string
} {
	type scenario = struct {
		runs   []run
		faults []fault
		now    float64
		want   string
	}
	// Two gangs fail with n1, which is all that they have in common.
	two := []run{{"g1", "n1 n2", 0, 20, false}, {"g2", "n1 n3", 40, 60, false}}
	// They run elsewhere.
	after := slices.Concat(two[:2], []run{{"g1", "n4 n5", 22, 0, false}, {"g2", "n6 n7", 62, 0, false}})
	return map[string]scenario{
		"one failure says nothing":            {runs: two[:1], now: 30},
		"two gangs that ran nowhere":          {runs: two, now: 62, want: "Doubt n1 2"},
		"one of them runs elsewhere":          {runs: after, now: 100, want: "Doubt n1 2"},
		"both run elsewhere":                  {runs: after, now: 122, want: "Suspect n1 2"},
		"one gang that fails there twice":     {runs: []run{two[0], {"g1", "n1 n3", 22, 30, false}}, now: 31},
		"failures after an hour say nothing":  {runs: []run{two[0], {"g2", "n1 n3", 40, 101, false}}, now: 110},
		"they decay":                          {runs: after, now: 60 + 47*60, want: "Suspect n1 2"},
		"and are forgotten":                   {runs: after, now: 60 + 49*60},
		"a run of several nodes clears":       {runs: append(after, run{"g3", "n1 n8", 70, 0, false}), now: 130},
		"not before an hour":                  {runs: append(after, run{"g3", "n1 n8", 70, 0, false}), now: 129, want: "Suspect n1 2"},
		"nor if it began before the failures": {runs: append(after, run{"g3", "n1", 10, 0, false}), now: 130, want: "Suspect n1 2"},
		"one node does not show that several work together": {
			runs: append(after, run{"g3", "n1", 70, 0, false}), now: 140, want: "Suspect n1 2",
		},
		"but that it works alone": {
			runs: []run{
				{"g1", "n1", 0, 20, false},
				{"g1", "n2", 22, 0, false},
				{"g2", "n1", 40, 60, false},
				{"g2", "n3", 62, 0, false},
				{"g3", "n1", 70, 0, false},
			},
			now: 140,
		},
		"what is left of a failed gang proves nothing": {
			runs: []run{
				two[0],
				{"g1", "n4 n5", 22, 0, false},
				two[1],
				{"g2", "n6 n7", 62, 0, false},
				{"g3", "n8", 64, 74, false},
				{"g3", "n1", 64, 0, false},
			},
			now: 140, want: "Suspect n1 3",
		},
		"twins": {
			runs: []run{
				{"g1", "n1 n2", 0, 20, false},
				{"g2", "n1 n2", 40, 60, false},
				{"g1", "n4 n5", 22, 0, false},
				{"g2", "n6 n7", 62, 0, false},
			},
			now: 140, want: "Doubt n1 2, Doubt n2 2",
		},
		"a third gang tells them apart, and clears the one beside": {
			runs: []run{
				{"g1", "n1 n2", 0, 20, false},
				{"g2", "n1 n2", 40, 60, false},
				{"g3", "n1 n3", 40, 60, false},
				{"g1", "n4 n5", 22, 0, false},
				{"g2", "n6 n7", 62, 0, false},
				{"g3", "n8 n9", 62, 0, false},
			},
			now: 140, want: "Suspect n1 3, Doubt n2 2",
		},
		"a fault near the failure is its node's": {
			runs: after, faults: []fault{{"n2", 15}}, now: 122,
		},
		"a fault long before is not": {
			runs: after, faults: []fault{{"n2", 5}}, now: 122, want: "Suspect n1 2",
		},
		"faults with which two gangs failed": {
			runs: two, faults: []fault{{"n1", 15}, {"n1", 65}}, now: 70, want: "Suspect n1 2",
		},
		"a fault that ended a long run": {
			runs: []run{{"g1", "n1 n2", 0, 500, false}, two[1]}, faults: []fault{{"n1", 500}}, now: 501,
			want: "Doubt n1 2",
		},
		"a gang whose code fails blames no node": {
			runs: []run{
				{"bug", "n1 n2", 0, 5, false},
				{"bug", "n3 n4", 10, 15, false},
				{"bug", "n5 n6", 20, 25, false},
				{"g1", "n1 n7", 30, 40, false},
				{"g2", "n3 n8", 30, 40, false},
				{"g3", "n5 n9", 30, 40, false},
			},
			now: 60,
		},
		"one that keeps a node does": {
			runs: []run{{"bug", "n1 n2", 0, 5, false}, {"bug", "n1 n4", 10, 15, false}, {"g1", "n1 n7", 30, 40, false}},
			now:  60, want: "Doubt n1 2",
		},
		"two bad nodes in a row": {
			runs: []run{
				{"g1", "n1 n2", 0, 20, false},
				{"g1", "n3 n4", 22, 42, false},
				{"g1", "n5 n6", 44, 0, false},
				{"g2", "n1 n7", 50, 60, false},
				{"g2", "n8 n9", 62, 0, false},
			},
			now: 103,
		},
		"until the gang runs well": {
			runs: []run{
				{"g1", "n1 n2", 0, 20, false},
				{"g1", "n3 n4", 22, 42, false},
				{"g1", "n5 n6", 44, 0, false},
				{"g2", "n1 n7", 50, 60, false},
				{"g2", "n8 n9", 62, 0, false},
			},
			now: 122, want: "Suspect n1 2",
		},
		"gangs that ended well have not failed": {
			runs: []run{{"g1", "n1 n2", 0, 20, true}, {"g2", "n1 n3", 40, 60, true}}, now: 70,
		},
		"a group": {runs: inGroup("a1 a2", "a3 a4", "a5 a6"), now: 200, want: "Suspect a 3"},
		"a group of two gangs": {
			runs: inGroup("a1 a2", "a3 a4"), now: 200,
		},
		"a group with a node in common": {
			runs: inGroup("a1 a2", "a1 a4", "a5 a6"), now: 200, want: "Suspect a1 2",
		},
		"gangs that reach beyond the group": {
			runs: inGroup("a1 a2", "a3 a4", "a5 b1"), now: 200,
		},
		"a group in which a gang runs": {
			runs: append(inGroup("a1 a2", "a3 a4", "a5 a6"), run{"g9", "a1 a6", 30, 0, false}), now: 200,
		},
	}
}

// inGroup returns gangs that fail on some nodes and run elsewhere.
func inGroup(nodes ...string) (out []run) {
	for i, on := range nodes {
		gang, start := fmt.Sprint("g", i), float64(i)
		elsewhere := fmt.Sprintf("e%d f%d", i, i)
		out = append(out, run{gang, on, start, start + 10, false}, run{gang, elsewhere, start + 20, 0, false})
	}
	return out
}

func TestPlaces(t *testing.T) {
	for name, tt := range scenarios() {
		t.Run(name, func(t *testing.T) {
			if got := places(remember(tt.runs, tt.faults, nil), tt.now); got != tt.want {
				t.Errorf("at %v: %q, want %q", tt.now, got, tt.want)
			}
		})
	}
}

// The result does not depend on the order in which watches bring the news, nor on earlier results.
func TestOrderDoesNotMatter(t *testing.T) {
	for name, tt := range scenarios() {
		want := remember(tt.runs, tt.faults, nil).Places(at(tt.now))
		for seed := range uint64(20) {
			m := remember(tt.runs, tt.faults, rand.New(rand.NewPCG(seed, 1)))
			if seed%2 == 0 {
				m.Places(at(tt.now / 2))
			}
			if diff := cmp.Diff(want, m.Places(at(tt.now))); diff != "" {
				t.Errorf("%s, seed %d (-want +got):\n%s", name, seed, diff)
			}
		}
	}
}

func TestEvidence(t *testing.T) {
	m := remember([]run{
		{"g1", "n1 n2 n3", 0, 20, false},
		{"g1", "n4 n5 n6", 22, 0, false},
		{"g2", "n1 n7", 40, 50, false},
		{"g2", "n8 n9", 52, 0, false},
	}, []fault{{"n1", 51}}, nil)
	want := []Place{{
		Kind: KindNode, Name: "n1", State: Suspect, Score: 1.5,
		Evidence: []Evidence{{"g1", at(20), "exit code 1", 3}, {"g2", at(50), "XID 79", 1}},
	}}
	// The first failure counts half, the second is as old as it was then.
	got := m.Places(at(20 + 48*60))
	for i := range got {
		got[i].Score -= math.Exp2(-47.5/48) - 1
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := m.Places(at(120 + 48*60)); len(got) != 0 {
		t.Errorf("later: %+v", got)
	}
}

func TestAvoid(t *testing.T) {
	m := remember([]run{
		{"g1", "n1 n2", 0, 20, false},
		{"g1", "n4 n5", 22, 0, false},
		{"g2", "n1 n3", 40, 60, false},
		{"g2", "n6 n7", 62, 0, false},
		{"g3", "n8 n9", 100, 110, false},
		{"g4", "n8 n9", 112, 120, false},
	}, nil, nil)
	for _, tt := range []struct {
		gang string
		want []string
	}{
		{"another", []string{"n1", "n8", "n9"}},
		{"g1", []string{"n1", "n2", "n8", "n9"}},
		{"g2", []string{"n1", "n3", "n8", "n9"}},
		{"g3", []string{"n1", "n8", "n9"}},
	} {
		nodes, sure := m.Avoid(tt.gang, at(125))
		if diff := cmp.Diff(tt.want, nodes); diff != "" || sure != 1 {
			t.Errorf("%s: %d are sure (-want +got):\n%s", tt.gang, sure, diff)
		}
	}
}

func TestAvoidsNothingWithoutFailures(t *testing.T) {
	nodes, sure := remember([]run{{"g1", "n1 n2", 0, 0, false}}, nil, nil).Avoid("g1", at(500))
	if nodes != nil || sure != 0 {
		t.Errorf("%v, %d", nodes, sure)
	}
}

// A pod that is deleted while it runs has not failed; one that is deleted afterwards has.
func TestLose(t *testing.T) {
	m := NewMemory()
	for _, r := range []run{{"g1", "n1 n2", 0, 20, false}, {"g2", "n1 n3", 40, 0, false}} {
		for _, p := range r.pods() {
			m.See(p)
			m.Lose(p.UID, at(60))
		}
	}
	if got := places(m, 70); got != "" {
		t.Error(got)
	}
	for _, p := range (run{"g2", "n1 n3", 40, 60, false}).pods() {
		m.See(p) // The failure is heard of after the deletion.
		m.Lose(p.UID, at(65))
		p.Failure = "" // The pod is seen again while it is deleted.
		m.See(p)
	}
	if got := places(m, 70); got != "Doubt n1 2" {
		t.Error(got)
	}
}

func TestForgets(t *testing.T) {
	m := remember([]run{{"g1", "n1 n2", 0, 20, false}, {"g2", "n1 n3", 40, 60, true}, {"g3", "n4", 0, 0, false}},
		[]fault{{"n1", 15}}, nil)
	m.Avoid("g1", at(72*60))
	if len(m.gangs) != 3 || len(m.faults) != 1 {
		t.Errorf("after three days: %v, %v", m.gangs, m.faults)
	}
	m.Avoid("g1", at(73*60+2))
	if len(m.gangs) != 1 || m.gangs["g3"] == nil || len(m.faults) != 0 {
		t.Errorf("later: %v, %v", m.gangs, m.faults)
	}
}

// A gang that starts again and again takes no more room than some runs, and what it proved is kept.
func TestForgetsManyFailures(t *testing.T) {
	runs := []run{{"g1", "n8 n9", 0, 70, true}}
	for i := range 3 * maxFailures {
		runs = append(runs, run{"g1", "n1 n2", float64(80 + 5*i), float64(82 + 5*i), false})
	}
	m := remember(runs, nil, nil)
	m.Places(at(300))
	if got := len(m.gangs["g1"]); got != 2+2*maxFailures {
		t.Errorf("%d pods are remembered", got)
	}
}

// TestAvoidCables avoids a node while its cables are bad, after all suspects.
func TestAvoidCables(t *testing.T) {
	m := remember(scenarios()["both run elsewhere"].runs, nil, nil)
	avoid := func() string {
		nodes, sure := m.Avoid("x", at(122))
		return fmt.Sprint(nodes, sure)
	}
	m.Node("n9", []Fault{{Since: at(1), Reason: "slow", Cables: true}})
	if got := avoid(); got != "[n1 n9] 1" {
		t.Errorf("avoids %s", got)
	}
	m.Node("n9", nil)
	if got := avoid(); got != "[n1] 1" {
		t.Errorf("avoids %s after the cable is good", got)
	}
	m.Node("n9", []Fault{{Since: at(1), Reason: "slow", Cables: true}})
	m.Remove("n9")
	if got := avoid(); got != "[n1] 1" {
		t.Errorf("avoids %s after the node is removed", got)
	}
}

func TestUntested(t *testing.T) {
	m := NewMemory()
	for _, name := range []string{"c", "a", "b"} {
		m.Tested(name, false)
	}
	if got := m.Untested(); got != nil {
		t.Errorf("no node was tested: %v", got)
	}
	m.Tested("b", true)
	if got := m.Untested(); fmt.Sprint(got) != "[a c]" {
		t.Errorf("untested %v", got)
	}
	if m.Remove("b"); m.Untested() != nil {
		t.Error("a node that was removed counts as tested")
	}
}
