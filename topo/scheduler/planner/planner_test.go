package planner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// A scheduler that has just started does not place a gang against its rules, only since
// topo-master starts at the same time.
func TestRulesWaitForTheFirstTree(t *testing.T) {
	const waits = "waits for a topology tree from topo-master"
	for _, tt := range []struct {
		name  string
		spec  gang.Spec
		after time.Duration
		want  string
	}{
		{name: "no rules"},
		{name: "a preferred level", spec: gang.Spec{Preferred: "leaf"}},
		{name: "a required level", spec: gang.Spec{Required: "leaf"}, want: waits},
		{name: "slices", spec: gang.Spec{GroupSize: 8}, want: waits},
		{name: "the gang chose it", spec: gang.Spec{Required: "leaf", WithoutMap: gang.Place}},
		{name: "at last", spec: gang.Spec{Required: "leaf"}, after: time.Minute, want: waits},
		{name: "no longer", spec: gang.Spec{Required: "leaf"}, after: time.Minute + time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(topologyclient.New(topologyclient.Options{URL: "http://master/node_group"}), gang.Place, sgpu.GPUs{gpu})
				<-time.After(tt.after)
				r := newHunt(t, [][]string{nil}).request(1, 8)
				r.Gangs[0].Spec = tt.spec
				if _, reason := p.Plan(r); reason != tt.want {
					t.Errorf("%q, want %q", reason, tt.want)
				}
			})
		})
	}
}
