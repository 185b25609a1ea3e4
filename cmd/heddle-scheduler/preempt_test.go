package main

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// low has two gangs of two pods that fill four nodes between them: young on a and c, old
// on b and d.
func low(t *testing.T, more ...runtime.Object) *cluster {
	t.Helper()
	w := unscheduled(t, node("a", 4), node("b", 4), node("c", 4), node("d", 4))
	for _, object := range more {
		w.add(object)
	}
	for i, at := range []string{"a", "b", "c", "d"} {
		name := []string{"young", "old"}[i%2]
		p := pod(fmt.Sprintf("%s-%d", name, i/2), 4, gangLabels(name, 2))
		p.Spec.NodeName, p.Status.Phase = at, corev1.PodRunning
		p.Status.StartTime = new(metav1.NewTime(time.Now().Add(-time.Duration(1+i%2) * time.Hour)))
		p.Labels["app"] = name
		w.add(p)
	}
	w.schedule(withArgs(loaded(t, documented), args("")))
	return w
}

// high adds a gang of two pods of a higher priority.
func (w *cluster) high(change func(i int, p *corev1.Pod)) {
	w.Helper()
	for i := range 2 {
		p := pod(fmt.Sprintf("high-%d", i), 4, gangLabels("high", 2))
		p.Spec.Priority = new(int32(1000))
		if change != nil {
			change(i, p)
		}
		w.add(p)
	}
}

// left waits until the gang of a higher priority has its nodes, and checks who is left.
func (w *cluster) left(want string) {
	w.Helper()
	pods := w.whole("high", 2)
	for _, name := range []string{"young", "old"} {
		n := 0
		if name == want {
			n = 2
		}
		if bound(pods, name) != n {
			w.Errorf("%d pods of %s are left, want %d", bound(pods, name), name, n)
		}
	}
}

// The youngest gang goes whole, and the other stays whole. Its pods are evicted as
// kube-scheduler's preemption evicts; Events are in test/e2e.
func TestAGangPreemptsAWholeGang(t *testing.T) {
	w := low(t)
	uids := map[string]types.UID{}
	for name, p := range w.pods() {
		uids[name] = p.UID
	}
	w.high(nil)
	w.left("old")
	deleted, conditions := 0, 0
	for _, action := range w.client.Actions() {
		switch a := action.(type) {
		case clienttesting.DeleteActionImpl:
			if p := a.GetDeleteOptions().Preconditions; p == nil || *p.UID != uids[a.GetName()] {
				t.Errorf("%s is deleted with the preconditions %v", a.GetName(), p)
			}
			deleted++
		case clienttesting.PatchActionImpl:
			if strings.Contains(string(a.GetPatch()), corev1.PodReasonPreemptionByScheduler) && a.GetSubresource() == "status" {
				conditions++
			}
		}
	}
	if deleted != 2 || conditions != 2 {
		t.Errorf("%d pods are deleted, %d have the condition; want 2", deleted, conditions)
	}
}

// A node that no victim makes fit, for what no plan sees, is found out before any dies.
func TestNoGangDiesInVain(t *testing.T) {
	guard := pod("guard", 0, map[string]string{"app": "guard"})
	guard.Spec.NodeName, guard.Spec.Priority = "c", new(int32(2000))
	w := low(t, guard)
	w.high(func(_ int, p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guard"}}, TopologyKey: corev1.LabelHostname,
			}},
		}}
	})
	w.left("young")
}

// While victims terminate, the members are nominated, no other pod gets the room, and no
// other gang is evicted. An eviction that failed is tried again.
func TestAPreemptingGangKeepsItsRoom(t *testing.T) {
	w := low(t)
	var failed atomic.Bool
	w.client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if failed.CompareAndSwap(false, true) {
			return true, nil, errors.New("the API server is away")
		}
		w.change(action.(clienttesting.DeleteAction).GetName(), func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		return true, nil, nil
	})
	w.high(nil)
	w.until("both nominated", func(pods map[string]*corev1.Pod) bool {
		at := pods["high-0"].Status.NominatedNodeName + pods["high-1"].Status.NominatedNodeName
		return (at == "ac" || at == "ca") && pods["young-0"].DeletionTimestamp != nil && pods["young-1"].DeletionTimestamp != nil
	})
	late := pod("late", 4, nil)
	late.Spec.Priority = new(int32(500))
	late.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	w.add(late)
	w.until("the late pod tried", func(pods map[string]*corev1.Pod) bool { return why(pods["late"]) != "" })
	w.delete("young-0")
	w.delete("young-1")
	w.left("old")
	pods := w.pods()
	if bound(pods, "late") > 0 || pods["old-0"].DeletionTimestamp != nil || pods["old-1"].DeletionTimestamp != nil {
		t.Error("the late pod has the room, or the other gang dies too")
	}
}

// A pod of no gang has one gang evicted whole: kube-scheduler's own preemption would halve it.
func TestAPodPreemptsAWholeGang(t *testing.T) {
	w := low(t)
	p := pod("high", 4, nil)
	p.Spec.Priority = new(int32(1000))
	w.add(p)
	pods := w.until("the pod bound", func(pods map[string]*corev1.Pod) bool { return pods["high"].Spec.NodeName != "" })
	if young, old := bound(pods, "young"), bound(pods, "old"); young != 0 || old != 2 {
		t.Errorf("%d pods of the younger gang are left and %d of the older, want 0 and 2", young, old)
	}
}
