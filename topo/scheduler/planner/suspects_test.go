package planner

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// Two nodes are in one leaf.
func TestPlanAround(t *testing.T) {
	full := []string{"a 8 20 1"}
	for _, tt := range []struct {
		name     string
		nodes    [][]string
		pods     int
		level    string
		suspects string
		sure     int
		want     string
	}{
		{"no suspects", [][]string{{}, {}, {}, {}}, 2, "", "", 0, "n0 n1"},
		{"elsewhere", [][]string{{}, {}, {}, {}}, 2, "", "n2 n3", 2, "n0 n1"},
		{"another leaf", [][]string{{}, {}, {}, {}}, 2, "", "n1", 0, "n2 n3"},
		{"no leaf is left, in doubt", [][]string{{}, {}, {}, full}, 2, "", "n1", 0, "n0 n1"},
		{"no leaf is left, for sure", [][]string{{}, {}, {}, full}, 2, "", "n1", 1, "n0 n2"},
		{"no leaf is left, which it requires", [][]string{{}, {}, {}, full}, 2, "leaf", "n1", 1, "n0 n1"},
		{"the less suspect one", [][]string{{}, {}}, 1, "", "n0 n1", 2, "n1"},
		{"no other room", [][]string{{}, full}, 1, "", "n0", 1, "n0"},
		{"no room", [][]string{full}, 1, "", "n0", 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newHunt(t, tt.nodes).request(tt.pods, 8)
			r.Gangs[0].Spec.Required = tt.level
			p := New(topologyclient.Of(leavesOf(len(tt.nodes))), gang.Place, sgpu.GPUs{gpu})
			plan := p.PlanAround(r, strings.Fields(tt.suspects), tt.sure)
			got := ""
			if plan.Places != nil {
				got = strings.Join(plan.Places[0].Nodes, " ")
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
