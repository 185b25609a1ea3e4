package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTwoGangsThatEachCouldHoldHalf(t *testing.T) {
	w := start(t, args(""), node("a", 4), node("b", 4))
	// Interleaved, as two jobs come that start at once.
	for i := range 6 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 6)))
		w.add(pod(fmt.Sprintf("y-%d", i), 1, gangLabels("y", 6)))
	}
	pods := w.until("one of two gangs bound", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "x")+bound(pods, "y") >= 6
	})
	first, second := "x", "y"
	if bound(pods, "y") > 0 {
		first, second = "y", "x"
	}
	if bound(pods, first) != 6 || bound(pods, second) != 0 {
		t.Errorf("x has %d and y has %d", bound(pods, "x"), bound(pods, "y"))
	}
	w.until("the other rejected", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods[second+"-0"]), "rejected by podgroup "+second)
	})
	for i := range 6 {
		w.delete(fmt.Sprintf("%s-%d", first, i))
	}
	w.until("the other bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, second) == 6 })
}

// No reservation is made for a gang that could not start on an empty cluster, however long it has waited: those behind
// it get every node.
func TestAGangThatNeverStartsClosesNoNode(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 27 {
		nodes = append(nodes, node(fmt.Sprintf("n%02d", i), 8))
	}
	w := start(t, args(""), nodes...)
	w.old("never", 35, 8)
	w.until("never rejected", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["never-0"]), "rejected by podgroup never: 27 of 35 fit")
	})
	w.gang("later", 9, 8, 9)
	for i := range 18 {
		w.add(pod(fmt.Sprintf("plain-%d", i), 8, nil))
	}
	w.until("all nodes in use", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "later") == 9 && bound(pods, "plain") == 18
	})
	w.shows(map[string]float64{"heddle_scheduler_gangs{Queued}": 1, "heddle_scheduler_gangs_placed_total{none}": 1})
}

func TestGangsOfAGroupRunTogetherOrNotAtAll(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	groups := func(p *corev1.Pod) *corev1.Pod {
		p.Annotations = map[string]string{"pod-group.scheduling.sigs.k8s.io/groups": `["default/actors", "default/learners"]`}
		return p
	}
	for i := range 2 {
		w.add(groups(pod(fmt.Sprintf("actor-%d", i), 1, gangLabels("actors", 2))))
	}
	for i := range 3 {
		w.add(groups(pod(fmt.Sprintf("learner-%d", i), 1, gangLabels("learners", 3))))
	}
	pods := w.until("both rejected", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["actor-0"]), "rejected by") && strings.Contains(why(pods["learner-0"]), "rejected by")
	})
	t.Log(why(pods["actor-0"]))
	if n := bound(pods, ""); n > 0 {
		t.Errorf("%d pods have a node", n)
	}
	w.add(node("b", 1))
	w.until("both bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "") == 5 })
}

func TestDeadlineFreesEverything(t *testing.T) {
	w := start(t, args(""), node("a", 2), node("b", 2))
	// A node that turns a member away for what no plan sees: a pod that must
	// not be beside it.
	guard := pod("guard", 0, map[string]string{"app": "guard"})
	guard.Spec.NodeName = "b"
	w.add(guard)
	for i := range 4 {
		p := pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 4))
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guard"}}, TopologyKey: corev1.LabelHostname,
		}}}}
		w.add(p)
	}
	pods := w.until("rejected", func(pods map[string]*corev1.Pod) bool {
		for name, p := range pods {
			if name != "guard" && !strings.Contains(why(p), "rejected by podgroup x") {
				return false
			}
		}
		return true
	})
	if n := bound(pods, "x"); n > 0 {
		t.Errorf("%d pods have a node", n)
	}
	t.Log(why(pods["x-0"]))
	w.add(pod("plain-0", 2, nil))
	w.whole("plain", 1)
	w.delete("plain-0")
	w.delete("guard")
	w.whole("x", 4)
}

func TestRecreatedMemberFindsItsGang(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	w.gang("x", 4, 1, 4)
	w.whole("x", 4)
	w.delete("x-2")
	w.add(pod("x-2", 1, gangLabels("x", 4)))
	w.whole("x", 4)
}

// A gang that runs goes on when its minimum rises, and a member that comes later joins it.
func TestMinimumRaisedAfterMembersAreBound(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	w.gang("x", 2, 1, 2)
	was := w.whole("x", 2)
	for name := range was {
		w.change(name, func(p *corev1.Pod) { p.Labels = gangLabels("x", 3) })
	}
	w.add(pod("plain", 1, nil))
	w.whole("plain", 1)
	w.add(pod("x-2", 1, gangLabels("x", 3)))
	now := w.whole("x", 3)
	for name := range was {
		if now[name].Spec.NodeName != was[name].Spec.NodeName {
			t.Errorf("%s was on %s and is on %s", name, was[name].Spec.NodeName, now[name].Spec.NodeName)
		}
	}
}

// Two schedulers that both take themselves for the leader bind the same gangs: a pod keeps
// the node that it got first, and none is left in part.
func TestTwoLeaders(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 6 {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), 4))
	}
	c := withArgs(loaded(t, documented), args(""))
	w := startAs(t, c, nodes...)
	w.rivals.Store(true)
	w.schedule(c)
	for i := range 4 {
		w.gang(fmt.Sprintf("g%d", i), 6, 1, 6)
	}
	for i := range 4 {
		w.whole(fmt.Sprintf("g%d", i), 6)
	}
	// Neither has a reservation left for what the other bound.
	for i := range 4 {
		for j := range 6 {
			w.delete(fmt.Sprintf("g%d-%d", i, j))
		}
	}
	w.gang("last", 6, 4, 6)
	w.whole("last", 6)
}
