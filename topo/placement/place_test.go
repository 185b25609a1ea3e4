package placement_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/placement"
)

var update = flag.Bool("update", false, "write the results in testdata")

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

// TestPlace: the file has gangs of pods of 8 GPUs, or of other tasks, the room on each node of fixture, and the nodes
// of the ranks with the group that they reach, or the rejection. Node -1 is none.
func TestPlace(t *testing.T) {
	tree := fixture(t)
	golden.Rows(t, "testdata/plans.txt", *update, func(text string) string {
		asked, room, _ := strings.Cut(text, "\n")
		var row struct {
			placement.Gang
			Pods int
		}
		if err := json.Unmarshal([]byte(asked), &row); err != nil { //nolint:musttag // Rows are of this test alone.
			t.Fatal(err)
		}
		if row.Pods > 0 {
			row.Tasks = workers(row.Pods)
		}
		var fit []int32
		for word := range strings.FieldsSeq(room) {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			fit = append(fit, int32(n))
		}
		plan, rejection := placement.Place(tree, &row.Gang, &placement.Capacity{Fit: [][]int32{fit}})
		if rejection != nil {
			return rejection.Error()
		}
		return strings.TrimSpace(fmt.Sprintf("%v %s %s", plan.Nodes, plan.Group.Kind, plan.Group.Name))
	})
}
