package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A scheduler that was killed while it bound a gang finishes it: what is bound
// had been let go together.
func TestHalfBoundGangIsFinishedAfterARestart(t *testing.T) {
	w := start(t, args(""), node("a", 4), node("b", 4))
	for i := range 5 {
		p := pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 5))
		if i < 2 {
			p.Spec.NodeName = "a"
		}
		w.add(p)
	}
	w.whole("x", 5)
}

// A gang that runs by half, since the scheduler was killed or members died, gets
// the room that it alone lacks before one that has not begun, whichever is tried
// first; unless that one has a higher priority.
func TestHalfBoundGangComesFirst(t *testing.T) {
	for _, tt := range []struct {
		name     string
		priority int32
		first    string
	}{{"the same priority", 0, "x"}, {"a higher priority", 1, "eager"}} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t, args(""))
			sizes := map[string]int{"eager": 5, "x": 6}
			add := func(gang string, i int) {
				p := pod(fmt.Sprintf("%s-%d", gang, i), 1, gangLabels(gang, sizes[gang]))
				if gang == "eager" {
					p.Spec.Priority, p.Spec.PreemptionPolicy = &tt.priority, new(corev1.PreemptNever)
				} else if i < 2 {
					p.Spec.NodeName = "a"
				}
				w.add(p)
			}
			for i := range 5 {
				add("eager", i)
			}
			w.until("the eager gang rejected", func(pods map[string]*corev1.Pod) bool { return why(pods["eager-4"]) != "" })
			for i := range 6 {
				add("x", i)
			}
			w.until("the other rejected", func(pods map[string]*corev1.Pod) bool { return why(pods["x-5"]) != "" })
			// Six GPUs are free: for the four that x lacks, or for the eager gang.
			w.add(node("a", 8))
			pods := w.until(tt.first+" bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, tt.first) == sizes[tt.first] })
			if n := bound(pods, "eager"); tt.first == "x" && n > 0 {
				t.Errorf("%d of the eager gang have a node", n)
			}
		})
	}
}

// waiting-and-running counts members that run: one that is created again joins them.
func TestMatchPolicies(t *testing.T) {
	for _, tt := range []struct {
		policy string
		joins  bool
	}{{"once-satisfied", true}, {"waiting-and-running", true}, {"only-waiting", false}} {
		t.Run(tt.policy, func(t *testing.T) {
			w := start(t, args(""), node("a", 4))
			labels := gangLabels("x", 3)
			labels["pod-group.scheduling.sigs.k8s.io/match-policy"] = tt.policy
			for i := range 3 {
				w.add(pod(fmt.Sprintf("x-%d", i), 1, labels))
			}
			w.whole("x", 3)
			w.delete("x-1")
			w.add(pod("x-1", 1, labels))
			w.add(pod("plain", 1, nil)) // Comes after it: once it is bound, x-1 has been tried.
			pods := w.until("the plain pod bound", func(pods map[string]*corev1.Pod) bool {
				return bound(pods, "plain") == 1 && (!tt.joins || bound(pods, "x") == 3)
			})
			if got := bound(pods, "x") == 3; got != tt.joins {
				t.Errorf("x-1 joins: %t", got)
			}
		})
	}
}
