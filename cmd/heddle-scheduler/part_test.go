package main

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// failBinds makes the API reject bindings of a pod for as long as it is true.
func (w *cluster) failBinds(pod string) *atomic.Bool {
	var fails atomic.Bool
	fails.Store(true)
	w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || create.GetSubresource() != "binding" || !fails.Load() {
			return false, nil, nil
		}
		if binding, ok := create.GetObject().(*corev1.Binding); !ok || binding.Name != pod {
			return false, nil, nil
		}
		return true, nil, errors.New("the webhook is away")
	})
	return &fails
}

// A member that cannot be bound while the others are keeps its room from other pods until
// it is bound.
func TestFailedBind(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	fails := w.failBinds("x-2")
	for i := range 4 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 4)))
	}
	w.until("bound but for one", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "x") == 3 && strings.Contains(why(pods["x-2"]), "the webhook is away")
	})
	w.add(pod("plain-0", 1, nil))
	w.until("the plain pod finds the room reserved", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["plain-0"]), "reserved for a gang")
	})
	fails.Store(false)
	pods := w.until("the gang bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 4 })
	if bound(pods, "plain") > 0 {
		t.Error("the plain pod has a node")
	}
}

// A job that is restarted while its old pods terminate has all of its new pods, or none.
func TestRestartedGangIsAllOrNothing(t *testing.T) {
	w := start(t, args(""), node("a", 2), node("b", 2))
	for i := range 4 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 4)))
	}
	w.until("bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 4 })
	for i := range 4 {
		w.change(fmt.Sprintf("x-%d", i), func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"example.com/slow"}
		})
	}
	// Half of the room.
	w.delete("x-0")
	w.delete("x-1")
	// The kubelet reports once more about the others.
	for i := 2; i < 4; i++ {
		w.change(fmt.Sprintf("x-%d", i), func(p *corev1.Pod) { p.Status.Message = "stopping" })
	}
	for i := range 4 {
		w.add(pod(fmt.Sprintf("new-%d", i), 1, gangLabels("x", 4)))
	}
	w.until("rejected", func(pods map[string]*corev1.Pod) bool { return strings.Contains(why(pods["new-0"]), " of 4 fit") })
	w.add(pod("plain-0", 0, nil))
	pods := w.until("a later pod bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "plain") == 1 })
	if bound(pods, "new") > 0 {
		t.Errorf("%d of 4 new pods have a node", bound(pods, "new"))
	}
	w.delete("x-2")
	w.delete("x-3")
	w.until("all bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "new") == 4 })
}
