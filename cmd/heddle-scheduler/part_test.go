package main

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
	w.gang("x", 4, 1, 4)
	w.until("bound but for one", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "x") == 3 && strings.Contains(why(pods["x-2"]), "the webhook is away")
	})
	w.add(pod("plain-0", 1, nil))
	w.until("the plain pod finds the room reserved", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["plain-0"]), "reserved for a gang")
	})
	fails.Store(false)
	pods := w.whole("x", 4)
	if bound(pods, "plain") > 0 {
		t.Error("the plain pod has a node")
	}
}
