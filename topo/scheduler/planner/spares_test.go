package planner

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Two nodes are in one leaf.
func TestSpares(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		nodes      [][]string
		spares     string
	}{
		{"one of each leaf", "1", [][]string{{}, {}, {}, {}}, "n1 n3"},
		{"whole nodes", "1", [][]string{{}, {"a 1 0 1"}, {"b 8 0 1"}, {"c 8 0 1"}}, "n0"},
		{"no more than there are", "3", [][]string{{}, {}, {"a 1 0 1"}, {}}, "n0 n1 n3"},
		{"a percentage, rounded up", "40%", [][]string{{}, {}, {}, {}}, "n1 n3"},
		{"all", "100%", [][]string{{}, {}}, "n0 n1"},
		{"none", "0", [][]string{{}, {}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHunt(t, tt.nodes)
			p := New(topologyclient.Of(leavesOf(len(tt.nodes))), gang.Place, sgpu.GPUs{gpu})
			spares := p.Spares(h.nodes, nil, intstr.Parse(tt.want))
			if got := strings.Join(slices.Sorted(maps.Keys(spares)), " "); got != tt.spares {
				t.Fatalf("%q, want %q", got, tt.spares)
			}
			for node := range spares {
				q := Query{Nodes: h.nodes, Reservations: spares, Priority: 1000}
				free := q.Free(h.nodes[p.table.at[node]])
				if free.Count(ClassOf(requesting("new", 1), nil)) != 0 || free.Waiting.String() != "the repair of running gangs" {
					t.Errorf("node %s: %d GPUs are free, kept for %s", node, free.Left(gpu), free.Waiting)
				}
			}
		})
	}
}
