package gangcache

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// hunting has members planned on nodes that a pod must leave first.
func hunting(t *testing.T, c *Cache, victim *corev1.Pod, members ...*corev1.Pod) {
	t.Helper()
	node, rejection := cycle(c, members[0], func(unit []planner.Gang) planner.Plan {
		plan := planner.Plan{Places: make([]planner.Place, len(unit)), Leaving: []*corev1.Pod{victim}}
		for i := range unit {
			for range unit[i].Members {
				plan.Places[i].Nodes = append(plan.Places[i].Nodes, "n")
			}
		}
		return plan
	})
	if node != "n" {
		t.Fatalf("on %q: %s", node, rejection)
	}
}

// A plan lasts longer than the grace period of those that must leave, and is for nothing
// once it has ended.
func TestPreemptionTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, victim, a := newCache(), podOf("victim", nil), podOf("a", in("x", "1"))
		victim.Spec.TerminationGracePeriodSeconds = new(int64(3600))
		admit(c, a)
		hunting(t, c, victim, a)
		<-time.After(time.Hour)
		if c.Expire(nil); len(c.Snapshot(a).Leaving) != 1 {
			t.Error("the plan ends with the grace period")
		}
		<-time.After(preemptionSlack)
		if c.Expire(nil); len(c.Snapshot(a).Leaving) != 0 || len(c.Reservations()) != 0 {
			t.Error("the plan lasts for ever")
		}
	})
}

// Gangs that run together are planned together again if a node turns a member away: the
// one must not wait for members that are planned elsewhere by now.
func TestGangsOfAGroupPreemptTogether(t *testing.T) {
	c, victim := newCache(), podOf("victim", nil)
	var pods []*corev1.Pod
	for _, name := range []string{"x", "y"} {
		p := podOf(name, in(name, "1"))
		p.Annotations = map[string]string{"pod-group.scheduling.sigs.k8s.io/groups": `["default/x", "default/y"]`}
		admit(c, p)
		pods = append(pods, p)
	}
	hunting(t, c, victim, pods...)
	c.TurnedAway(pods[0], "n", "volume")
	if len(c.Snapshot(pods[1]).Leaving) != 0 {
		t.Error("the other gang keeps its plan")
	}
	hunting(t, c, victim, pods...)
	c.Preempt(pods[0])
	if evict, _ := c.Preempt(pods[1]); len(evict) != 1 {
		t.Error("no pod is evicted by the second plan")
	}
}
