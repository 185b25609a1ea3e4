package planner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// A gang of pods that are all different would take minutes to plan, in which no pod is scheduled.
func TestKindsOfMembersAreBounded(t *testing.T) {
	for _, tt := range []struct {
		kinds int
		want  string
	}{
		{maxKinds, ""},
		{maxKinds + 1, "its pods without a node differ in what they request, select or tolerate: 129 kinds, at most 128"},
	} {
		r := newHunt(t, make([][]string, maxKinds+1)).request(tt.kinds, 1)
		for i := range r.Gangs[0].Members {
			m := &r.Gangs[0].Members[i]
			m.Pod.Spec.Tolerations = []corev1.Toleration{{Key: fmt.Sprint("k", i)}}
			m.Class = ClassOf(m.Pod, nil)
		}
		if reason := newPlanner().Plan(r).Reason; reason != tt.want {
			t.Errorf("%d kinds: %q, want %q", tt.kinds, reason, tt.want)
		}
		for i := range r.Gangs[0].Members[1:] {
			r.Gangs[0].Members[i].Node = "n0" // Those that run do not count.
		}
		if reason := newPlanner().Plan(r).Reason; reason != "" {
			t.Errorf("%d kinds of which one needs a node: %q", tt.kinds, reason)
		}
	}
}

// A gang may have lost its last pod, and one that it runs with is planned.
func TestGangWithoutPods(t *testing.T) {
	r := newHunt(t, [][]string{nil}).request(1, 8)
	r.Gangs[0].Members, r.Gangs[0].MinMember = nil, 0
	p := newPlanner()
	if reason := p.Plan(r).Reason; reason != gang.Incomplete(0, 1) {
		t.Errorf("%q", reason)
	}
	if _, err := p.Room(&r.Gangs[0], &r.Query); err == nil || err.Error() != "the gang has no pods" {
		t.Error(err)
	}
}

// The launcher of an MPIJob with launcherCreationPolicy WaitForWorkersReady comes once the workers run, so never.
func TestLauncherComesLater(t *testing.T) {
	r := newHunt(t, [][]string{nil}).request(2, 8)
	r.Gangs[0].MinMember = 3
	const want = "2 of 3 pods exist; the gang waits until their controller has created the others"
	if reason := newPlanner().Plan(r).Reason; reason != want {
		t.Errorf("%q, want %q", reason, want)
	}
}

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
				if reason := p.Plan(r).Reason; reason != tt.want {
					t.Errorf("%q, want %q", reason, tt.want)
				}
			})
		})
	}
}
