package placement_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// of makes a group; nodes makes its nodes.
func of(kind, name string, child ...v1alpha1.Group) v1alpha1.Group {
	return v1alpha1.Group{Name: name, Kind: kind, Child: child, Status: v1alpha1.StatusReady}
}

func nodes(names ...string) (out []v1alpha1.Group) {
	for _, name := range names {
		out = append(out, of(v1alpha1.KindNode, name))
	}
	return out
}

// fixture has two spines: leaf-0 with the nodes 0 to 3 and leaf-1 with 4 to 6
// in one, leaf-2 with 7 and 8 in the other; node 9 is in no group.
func fixture(tb testing.TB) *placement.Tree {
	tb.Helper()
	tree, err := placement.New([]v1alpha1.Group{
		of("spine", "spine-a",
			of("leaf", "leaf-0", nodes("a0", "a1", "a2", "a3")...),
			of("leaf", "leaf-1", nodes("b0", "b1", "b2")...)),
		of(v1alpha1.KindNode, "x"),
		of("spine", "spine-b", of("leaf", "leaf-2", nodes("c0", "c1")...)),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return tree
}

// workers are pods of 8 GPUs.
func workers(n int) []placement.Task {
	return []placement.Task{{Name: "worker", Pods: n, GPUs: 8}}
}

func message(r error) string {
	if r == nil {
		return ""
	}
	return r.Error()
}

// outcome is a plan and a rejection as the tables write them.
type outcome struct {
	Nodes    []int32
	Reached  string
	Rejected string
}

func placeOn(tree *placement.Tree, g placement.Gang, c placement.Capacity) outcome {
	plan, rejection := placement.Place(tree, &g, &c)
	return outcome{plan.Nodes, plan.Group.Kind + " " + plan.Group.Name, message(rejection)}
}

func TestPlace(t *testing.T) {
	const none = placement.None
	one := []int32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	for _, tt := range []struct {
		name string
		gang placement.Gang
		fit  []int32
		want outcome
	}{
		{"the smallest leaf that holds it", placement.Gang{Tasks: workers(2)}, one, outcome{[]int32{7, 8}, "leaf leaf-2", ""}},
		{"the whole", placement.Gang{Tasks: workers(9)}, one, outcome{[]int32{0, 1, 2, 3, 4, 5, 6, 7, 8}, " ", ""}},
		{
			"more than there is",
			placement.Gang{Tasks: workers(12)},
			one,
			outcome{nil, " ", "10 of 12 fit, all nodes together are 16 GPUs short"},
		},
		{
			"a node in no group comes after a spread gang",
			placement.Gang{Tasks: workers(4)},
			[]int32{1, 1, 0, 0, 1, 1, 0, 0, 0, 4},
			outcome{[]int32{0, 1, 4, 5}, "spine spine-a", ""},
		},
		{
			"it comes alone if it does alone",
			placement.Gang{Tasks: workers(5)},
			[]int32{1, 1, 0, 0, 1, 1, 0, 0, 0, 5},
			outcome{[]int32{9, 9, 9, 9, 9}, "node x", ""},
		},
		{
			"required and too small",
			placement.Gang{Tasks: workers(5), Require: "leaf"},
			one,
			outcome{nil, " ", "4 of 5 fit, group leaf-0 is 8 GPUs short; 1 node with room is in no leaf"},
		},
		{
			"required, some of them now",
			placement.Gang{Tasks: workers(5), Require: "leaf", MinMember: 3},
			one,
			outcome{[]int32{0, 1, 2, 3, none}, "leaf leaf-0", ""},
		},
		{
			"not even these",
			placement.Gang{Tasks: workers(6), Require: "leaf", MinMember: 5},
			one,
			outcome{nil, " ", "4 of 5 fit, group leaf-0 is 8 GPUs short; 1 node with room is in no leaf"},
		},
		{"required and wide", placement.Gang{Tasks: workers(5), Require: "spine"}, one, outcome{[]int32{0, 1, 2, 3, 4}, "spine spine-a", ""}},
		{
			"a node is required",
			placement.Gang{Tasks: workers(3), Require: "node"},
			[]int32{1, 1, 1, 1, 1, 1, 2, 1, 1, 1},
			outcome{nil, " ", "2 of 3 fit, node b2 is 8 GPUs short"},
		},
		{
			"a node is required, of those in no group",
			placement.Gang{Tasks: workers(3), Require: "node"},
			[]int32{1, 1, 1, 1, 1, 1, 2, 1, 1, 3},
			outcome{[]int32{9, 9, 9}, "node x", ""},
		},
		{
			"a level that the topology does not have",
			placement.Gang{Tasks: workers(1), Require: "rack"},
			one,
			outcome{nil, " ", "the topology has no rack; it has spine, leaf"},
		},
		{
			"a preferred level keeps the roomy spine whole",
			placement.Gang{Tasks: workers(2), Prefer: "spine"},
			[]int32{1, 1, 0, 0, 1, 1, 1, 1, 1, 0},
			outcome{[]int32{7, 8}, "leaf leaf-2", ""},
		},
		{
			"and without it the fuller leaf",
			placement.Gang{Tasks: workers(1)},
			[]int32{1, 0, 0, 0, 1, 1, 1, 1, 1, 0},
			outcome{[]int32{0}, "node a0", ""},
		},
		{
			"the same, spines first",
			placement.Gang{Tasks: workers(1), Prefer: "spine"},
			[]int32{1, 0, 0, 0, 1, 1, 1, 1, 1, 0},
			outcome{[]int32{7}, "node c0", ""},
		},
		{
			"a preferred level that is too small",
			placement.Gang{Tasks: workers(5), Prefer: "leaf"},
			one,
			outcome{[]int32{0, 1, 2, 3, 4}, "spine spine-a", ""},
		},
		{
			"a preferred level that the topology does not have",
			placement.Gang{Tasks: workers(2), Prefer: "rack"},
			one,
			outcome{[]int32{7, 8}, "leaf leaf-2", ""},
		},
		{
			"avoided nodes",
			placement.Gang{Tasks: workers(2), Avoid: []int32{8, 5}},
			one,
			outcome{[]int32{4, 6}, "leaf leaf-1", ""},
		},
		{
			"avoided and short",
			placement.Gang{Tasks: workers(4), Avoid: []int32{0}, Require: "leaf"},
			one,
			outcome{nil, " ", "3 of 4 fit, group leaf-0 is 8 GPUs short; 1 node with room is in no leaf; 1 node avoided"},
		},
		{
			"slices: no leaf has room for one",
			placement.Gang{Tasks: workers(8), Slice: 64},
			one,
			outcome{nil, " ", "4 of 8 fit in slices of 64 GPUs, all nodes together are 32 GPUs short"},
		},
		{
			"slices: no multiple",
			placement.Gang{Tasks: workers(4), Slice: 12},
			one,
			outcome{nil, " ", "invalid slice size 12: want a multiple of the 8 GPUs of a pod"},
		},
		{
			"slices: no GPUs",
			placement.Gang{Tasks: []placement.Task{{Name: "w", Pods: 2}}, Slice: 12},
			one,
			outcome{nil, " ", "slices of 12 GPUs, and no pod asks for one"},
		},
		{
			"slices: unlike pods",
			placement.Gang{Tasks: []placement.Task{{Pods: 2, GPUs: 8}, {Pods: 2, GPUs: 4}}, Slice: 16},
			one,
			outcome{nil, " ", "slices of 16 GPUs, and pods that ask for 8 and for 4"},
		},
		{"no pods", placement.Gang{}, one, outcome{nil, " ", "the gang has no pods"}},
		{
			"more members than pods",
			placement.Gang{Tasks: workers(1), MinMember: 2},
			one,
			outcome{nil, " ", "2 members must run, and the gang has 1 pod"},
		},
		{
			"nothing is free",
			placement.Gang{Tasks: workers(3), Require: "leaf"},
			make([]int32, 10),
			outcome{nil, " ", "none of 3 fits, no node in a leaf has room for a worker"},
		},
		{
			"nothing asked for",
			placement.Gang{Tasks: []placement.Task{{Name: "w", Pods: 5}}, Require: "leaf"},
			one,
			outcome{nil, " ", "4 of 5 fit, group leaf-0 is 1 pod short; 1 node with room is in no leaf"},
		},
		{
			"negative room",
			placement.Gang{Tasks: workers(1)},
			[]int32{-5, 0, 0, 0, 0, 0, 0, 0, 0, -1},
			outcome{nil, " ", "none of 1 fits, no node has room for a worker"},
		},
		{
			"slices: the shorter one on a node in no group",
			placement.Gang{Tasks: workers(5), Slice: 16},
			[]int32{0, 0, 0, 0, 0, 0, 0, 1, 1, 3},
			outcome{[]int32{7, 8, 9, 9, 9}, " ", ""},
		},
		{
			"slices: the shorter one in a group, another on a node in none",
			placement.Gang{Tasks: workers(5), Slice: 16},
			[]int32{0, 0, 0, 0, 1, 1, 1, 0, 0, 2},
			outcome{[]int32{9, 9, 4, 5, 6}, " ", ""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := placeOn(fixture(t), tt.gang, placement.Capacity{Fit: [][]int32{tt.fit}})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
