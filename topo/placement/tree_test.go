package placement_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

func TestTree(t *testing.T) {
	tree := fixture(t)
	var got []string
	for n := range int32(tree.Len()) {
		text := fmt.Sprintf("%s is %s", tree.Name(n), tree.Status(n))
		for _, g := range tree.Around(n) {
			text += fmt.Sprintf(", in %s %s of tier %d with [%d,%d)", g.Kind, g.Name, g.Tier, g.First, g.End)
		}
		got = append(got, text)
		if id, known := tree.ID(tree.Name(n)); id != n || !known {
			t.Errorf("node %d has the ID %d, %v", n, id, known)
		}
	}
	want := []string{
		"a0 is Ready, in node a0 of tier 0 with [0,1), in leaf leaf-0 of tier 1 with [0,4), in spine spine-a of tier 2 with [0,7)",
		"a1 is Ready, in node a1 of tier 0 with [1,2), in leaf leaf-0 of tier 1 with [0,4), in spine spine-a of tier 2 with [0,7)",
		"a2 is Ready, in node a2 of tier 0 with [2,3), in leaf leaf-0 of tier 1 with [0,4), in spine spine-a of tier 2 with [0,7)",
		"a3 is Ready, in node a3 of tier 0 with [3,4), in leaf leaf-0 of tier 1 with [0,4), in spine spine-a of tier 2 with [0,7)",
		"b0 is Ready, in node b0 of tier 0 with [4,5), in leaf leaf-1 of tier 1 with [4,7), in spine spine-a of tier 2 with [0,7)",
		"b1 is Ready, in node b1 of tier 0 with [5,6), in leaf leaf-1 of tier 1 with [4,7), in spine spine-a of tier 2 with [0,7)",
		"b2 is Ready, in node b2 of tier 0 with [6,7), in leaf leaf-1 of tier 1 with [4,7), in spine spine-a of tier 2 with [0,7)",
		"c0 is Ready, in node c0 of tier 0 with [7,8), in leaf leaf-2 of tier 1 with [7,9), in spine spine-b of tier 2 with [7,9)",
		"c1 is Ready, in node c1 of tier 0 with [8,9), in leaf leaf-2 of tier 1 with [7,9), in spine spine-b of tier 2 with [7,9)",
		"x is Ready, in node x of tier 0 with [9,10)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := tree.ID("unknown"); ok {
		t.Error("an unknown node is in the tree")
	}
}

func TestInvalidTopology(t *testing.T) {
	deep := of("leaf", "l", nodes("n")...)
	for i := range 20 {
		deep = of(fmt.Sprint("k", i), fmt.Sprint("g", i), deep)
	}
	var many []v1alpha1.Group
	for i := range 65 {
		many = append(many, of(fmt.Sprint("k", i), "g"))
	}
	with := nodes("a")
	with[0].Child = nodes("b")
	for _, tt := range []struct {
		name   string
		groups []v1alpha1.Group
		want   string
	}{
		{"a node twice", append(nodes("a"), of("leaf", "l", nodes("a")...)), `topology: node "a" stands in two places`},
		{"a group twice", []v1alpha1.Group{of("leaf", "l"), of("spine", "s", of("leaf", "l"))}, `topology: leaf "l" stands in two places`},
		{"a node with children", with, `topology: node "a" has children`},
		{"a node without a name", nodes(""), `topology: a node has no name`},
		{"a group without a name", []v1alpha1.Group{of("leaf", "")}, `topology: a group has the name "" and the kind "leaf"`},
		{"a group without a kind", []v1alpha1.Group{of("", "l")}, `topology: a group has the name "l" and the kind ""`},
		{"too deep", []v1alpha1.Group{deep}, `topology: group "g3" is more than 16 groups deep`},
		{"too many kinds", many, `topology: more than 64 kinds of groups`},
		{
			"kinds inside each other",
			[]v1alpha1.Group{of("leaf", "l", of("spine", "s")), of("spine", "t", of("leaf", "m"))},
			`topology: kinds of groups contain each other`,
		},
		{"a kind inside itself", []v1alpha1.Group{of("leaf", "l", of("leaf", "m"))}, `topology: kinds of groups contain each other`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := placement.New(tt.groups); err == nil || err.Error() != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

func TestEmptyMap(t *testing.T) {
	for _, groups := range [][]v1alpha1.Group{nil, {of("leaf", "l")}} {
		tree, err := placement.New(groups)
		if err != nil {
			t.Fatal(err)
		}
		for _, require := range []string{"", "node", "leaf"} {
			if _, rejection := placement.Place(tree, &placement.Gang{Tasks: workers(1), Require: require}, &placement.Capacity{Fit: [][]int32{nil}}); rejection == nil {
				t.Errorf("a gang is placed on %v", groups)
			}
		}
	}
	tree, err := placement.New(nodes("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	want := outcome{nil, " ", "the topology has no leaf; it has no groups"}
	if diff := cmp.Diff(want, placeOn(tree, placement.Gang{Tasks: workers(1), Require: "leaf"}, placement.Capacity{Fit: [][]int32{{1, 1}}})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLargest(t *testing.T) {
	tree := fixture(t)
	got := tree.LargestFree([]int32{1, 0, 0, 0, 1, 1, 0, 2, 2, 9})
	if diff := cmp.Diff(map[string]int{"spine": 4, "leaf": 4}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// It leaves nothing behind.
	plan, rejection := placement.Place(tree, &placement.Gang{Tasks: workers(3)}, &placement.Capacity{Fit: [][]int32{{1, 1, 1, 0, 0, 0, 0, 0, 0, 0}}})
	if rejection != nil || plan.Group.Name != "leaf-0" {
		t.Errorf("%+v, %v", plan, rejection)
	}
}

// A topology comes over the network: whatever it contains, New returns, and a tree that
// it returns can be planned on.
func FuzzNew(f *testing.F) {
	seed := func(groups ...v1alpha1.Group) {
		b, err := json.Marshal(groups)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(5), uint8(2))
	}
	seed(nodes("a", "b")...)
	seed(of("spine", "s", of("leaf", "l", nodes("a", "b", "c")...), of("leaf", "m", nodes("d", "e")...)), nodes("x")[0])
	seed(of("leaf", "l", append(nodes("n0"), of("nvlink", "v", nodes("n2")...))...))
	seed(of("leaf", "l", of("leaf", "m")))
	f.Fuzz(func(t *testing.T, b []byte, pods, block uint8) {
		var groups []v1alpha1.Group
		if json.Unmarshal(b, &groups) != nil {
			return
		}
		tree, err := placement.New(groups)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without a word")
			}
			return
		}
		fit := make([]int32, tree.Len())
		total := 0
		for i := range fit {
			fit[i] = int32(i % 3)
			total += i % 3
		}
		g := placement.Gang{Tasks: workers(int(pods)), Slice: 8 * int(block)}
		plan, rejection := placement.Place(tree, &g, &placement.Capacity{Fit: [][]int32{fit}})
		if rejection != nil {
			if block == 0 && pods > 0 && int(pods) <= total {
				t.Errorf("%d pods are rejected with room for %d: %v", pods, total, rejection)
			}
			return
		}
		for _, node := range plan.Nodes {
			if fit[node]--; fit[node] < 0 {
				t.Fatalf("node %d has too many pods", node)
			}
		}
		tree.Around(plan.Nodes...)
	})
}
