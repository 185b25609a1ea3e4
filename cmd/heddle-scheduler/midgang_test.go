package main

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What changes while a gang is on its way to its nodes. After each nothing is partial at
// rest: all members run, or none holds room.

func (w *cluster) gang(name string, n, gpus, least int) {
	w.Helper()
	for i := range n {
		w.add(pod(fmt.Sprintf("%s-%d", name, i), gpus, gangLabels(name, least)))
	}
}

// resize changes how many pods the gang x needs.
func (w *cluster) resize(least int) {
	for name := range w.pods() {
		if strings.HasPrefix(name, "x-") {
			w.change(name, func(p *corev1.Pod) { p.Labels = gangLabels("x", least) })
		}
	}
}

func (w *cluster) changeNode(name string, how func(*corev1.Node)) {
	gvr := corev1.SchemeGroupVersion.WithResource("nodes")
	object, err := w.client.Tracker().Get(gvr, "", name)
	if err != nil {
		w.Fatal(err)
	}
	changed := object.(*corev1.Node).DeepCopy()
	how(changed)
	changed.ResourceVersion = fmt.Sprint(w.version.Add(1))
	if err := w.client.Tracker().Update(gvr, changed, ""); err != nil {
		w.Fatal(err)
	}
}

// holdsNothing is a state of rest: the gang x has no node, and pods that fill this many nodes
// of four GPUs find room. They are gone afterwards.
func (w *cluster) holdsNothing(nodes int) {
	w.Helper()
	for i := range nodes {
		w.add(pod(fmt.Sprintf("filler-%d", i), 4, nil))
	}
	pods := w.until("the room of x is free", func(pods map[string]*corev1.Pod) bool { return bound(pods, "filler") == nodes })
	if n := bound(pods, "x-"); n > 0 {
		w.Errorf("%d members have a node", n)
	}
	for i := range nodes {
		w.delete(fmt.Sprintf("filler-%d", i))
	}
}

// whole waits until n members of a gang run.
func (w *cluster) whole(gang string, n int) map[string]*corev1.Pod {
	w.Helper()
	return w.until(gang+" is whole", func(pods map[string]*corev1.Pod) bool { return bound(pods, gang) == n })
}

// The minimum changes while three members wait in Permit for the fourth.
func TestMinimumRaisedWhileMembersWait(t *testing.T) {
	w, _, _, onward := midGang(t, node("a", 4), node("b", 4))
	w.resize(5)
	w.givenBack()
	onward()
	w.holdsNothing(2)
	w.resize(4)
	w.whole("x", 4)
}

// Those that wait are enough now, and no other member comes that would notice.
func TestMinimumLoweredWhileMembersWait(t *testing.T) {
	w, _, _, onward := midGang(t, node("a", 4), node("b", 4))
	w.resize(3)
	w.seen()
	w.delete(w.waiting())
	w.seen()
	onward()
	w.whole("x", 3)
}

// A gang that runs goes on when its minimum rises, and a member that comes later joins it.
func TestMinimumRaisedAfterMembersAreBound(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	w.gang("x", 2, 1, 2)
	was := w.whole("x", 2)
	w.resize(3)
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

// A member becomes unreadable, or leaves the gang, while three wait in Permit.
func TestGarbageWhileMembersWait(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"slices":       {"nvidia.com/gpu-group-size": "\x00\xff"},
		"groups":       {"gang.scheduling.koordinator.sh/groups": `[{"`},
		"another gang": {"gang.scheduling.koordinator.sh/name": "y"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _, _, onward := midGang(t, node("a", 4), node("b", 4))
			w.change("x-1", func(p *corev1.Pod) { p.Annotations = maps.Clone(annotations) })
			w.givenBack()
			onward()
			w.holdsNothing(2)
			w.change("x-1", func(p *corev1.Pod) { p.Annotations = nil })
			w.whole("x", 4)
		})
	}
}

// A node of the plan is closed or gone while members wait for it in Permit, and the last one
// has not been there.
func TestNodeLeavesMidGang(t *testing.T) {
	leave := map[string]func(*cluster, string){
		"cordoned": func(w *cluster, name string) {
			w.changeNode(name, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		},
		"tainted": func(w *cluster, name string) {
			w.changeNode(name, func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "down", Effect: corev1.TaintEffectNoExecute})
			})
		},
		"deleted": func(w *cluster, name string) {
			if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", name); err != nil {
				w.Fatal(err)
			}
		},
	}
	for what, leave := range leave {
		for _, room := range []bool{true, false} {
			for _, which := range []string{"full", "half"} {
				t.Run(fmt.Sprintf("%s, the %s one, room elsewhere %t", what, which, room), func(t *testing.T) {
					w, left, half, onward := midGang(t, node("a", 4), node("b", 4))
					if which == "half" {
						left = half
					}
					leave(w, left)
					if room {
						w.add(node("c", 4))
						w.seen()
					}
					w.givenBack()
					onward()
					if !room {
						w.holdsNothing(1)
						w.add(node("c", 4))
					}
					for name, p := range w.whole("x", 4) {
						if p.Spec.NodeName == left {
							t.Errorf("%s is on %s", name, left)
						}
					}
				})
			}
		}
	}
}

// A node is deleted once all members are on their way to be bound to it: the API server would
// take the bindings. They go to another node, all of them.
func TestNodeDeletedDuringBinding(t *testing.T) {
	w := unscheduled(t, node("a", 4))
	w.brake.bind = make(chan struct{})
	onward := sync.OnceFunc(func() { close(w.brake.bind) })
	w.schedule(withBrake(t))
	t.Cleanup(onward) // Before the scheduler is stopped.
	w.gang("x", 2, 2, 2)
	w.until("both on their way", func(map[string]*corev1.Pod) bool { return w.brake.binding() == 2 })
	if err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "a"); err != nil {
		t.Fatal(err)
	}
	w.add(node("b", 4))
	w.seen()
	onward()
	for name, p := range w.whole("x", 2) {
		if p.Spec.NodeName != "b" {
			t.Errorf("%s is bound to %s", name, p.Spec.NodeName)
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
