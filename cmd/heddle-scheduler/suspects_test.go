package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fail ends the pods of a gang, which ran for a minute, and deletes them.
func (w *cluster) fail(gang string, n int) {
	w.Helper()
	end := time.Now().Truncate(time.Second)
	for i := range n {
		name := fmt.Sprintf("%s-%d", gang, i)
		w.change(name, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.StartTime = corev1.PodFailed, new(metav1.NewTime(end.Add(-time.Minute)))
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: metav1.NewTime(end)},
			}}}
		})
	}
	w.seen()
	for i := range n {
		w.delete(fmt.Sprintf("%s-%d", gang, i))
	}
}

// A gang that comes back avoids the nodes on which it failed while others have room, and a third gang the node on
// which two failed.
func TestGangAvoidsNodesOnWhichGangsFailed(t *testing.T) {
	w := start(t, args(""), node("a", 4), node("b", 4), node("c", 4))
	w.gang("x", 1, 4, 1)
	first := w.whole("x", 1)["x-0"].Spec.NodeName
	w.fail("x", 1)
	w.gang("x", 1, 4, 1)
	second := w.whole("x", 1)["x-0"].Spec.NodeName
	if second == first {
		t.Errorf("x is on node %s again", first)
	}
	others := []string{"a", "b", "c"}
	for _, name := range others {
		if name != first && name != second {
			w.add(on(name, "full", 4, 1))
		}
	}
	w.seen()
	w.gang("y", 1, 4, 1)
	if at := w.whole("y", 1)["y-0"].Spec.NodeName; at != first {
		t.Errorf("y is on %s, want %s: one gang says nothing to others", at, first)
	}
	w.fail("y", 1)
	w.delete("full")
	w.seen()
	w.gang("z", 1, 4, 1)
	if at := w.whole("z", 1)["z-0"].Spec.NodeName; at == first {
		t.Errorf("z is on %s, where two gangs failed", at)
	}
	w.gang("last", 1, 4, 1) // It needs the node that the others avoid.
	w.whole("last", 1)
}

// One idle node of each leaf is for repair alone.
func TestSparesAreForRepair(t *testing.T) {
	m := &master{}
	m.set(leaves(3, "a", "b", "c", "d", "e", "f"))
	w := start(t, withMaster(t, m, `, "spares": 1, "sparesPriority": 5`),
		node("a", 4), node("b", 4), node("c", 4), node("d", 4), node("e", 4), node("f", 4))
	m.await()
	gang := func(name string, priority int32) {
		for i := range 2 {
			p := pod(fmt.Sprintf("%s-%d", name, i), 4, gangLabels(name, 2))
			p.Spec.Priority = new(priority)
			w.add(p)
		}
		w.whole(name, 2)
	}
	gang("x", 5)
	gang("y", 0)
	w.add(pod("alone", 1, nil))
	w.rejected("alone", "node(s) reserved for the repair of running gangs")
	w.add(pod("cpu", 0, nil))
	w.whole("cpu", 1)
	lost := w.pods()["x-0"].Spec.NodeName
	w.delete("x-0")
	w.add(on(lost, "taken", 4, 1))
	again := pod("x-0", 4, gangLabels("x", 2))
	again.Spec.Priority = new(int32(5))
	w.seen()
	w.add(again)
	pods := w.whole("x", 2)
	leaf := map[string]string{"a": "0", "b": "0", "c": "0", "d": "1", "e": "1", "f": "1"}
	if leaf[pods["x-0"].Spec.NodeName] != leaf[pods["x-1"].Spec.NodeName] {
		t.Errorf("repaired on %s, beside %s", pods["x-0"].Spec.NodeName, pods["x-1"].Spec.NodeName)
	}
	// A gang that comes back whole needs the spare as well.
	w.fail("x", 2)
	for i := range 2 {
		p := pod(fmt.Sprintf("x-%d", i), 4, gangLabels("x", 2))
		p.Spec.Priority = new(int32(5))
		w.add(p)
	}
	w.whole("x", 2)
	lost = pods["y-0"].Spec.NodeName
	w.delete("y-0")
	w.add(on(lost, "taken-too", 4, 1))
	w.seen()
	w.add(pod("y-0", 4, gangLabels("y", 2)))
	w.until("y waits", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["y-0"]), "rejected by podgroup y")
	})
}
