package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// old adds a gang whose pods have waited for 13 hours.
func (w *cluster) old(name string, n, gpus int) {
	w.Helper()
	for i := range n {
		p := pod(fmt.Sprintf("%s-%d", name, i), gpus, gangLabels(name, n))
		p.CreationTimestamp = metav1.NewTime(time.Now().Add(-13 * time.Hour))
		w.add(p)
	}
}

// on is a pod that runs, as created some hours ago.
func on(node, name string, gpus, hours int) *corev1.Pod {
	p := pod(name, gpus, nil)
	p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Duration(hours) * time.Hour))
	p.Spec.NodeName = node
	return p
}

// rejected waits until one of the pods whose names begin so shows a reason.
func (w *cluster) rejected(prefix, reason string) {
	w.Helper()
	w.until(prefix+" rejected: "+reason, func(pods map[string]*corev1.Pod) bool {
		for name, p := range pods {
			if strings.HasPrefix(name, prefix) && strings.Contains(why(p), reason) {
				return true
			}
		}
		return false
	})
}

// The first gang that has waited for 12 hours keeps what is idle and what becomes idle first; other nodes, and pods
// that take no GPUs or have a higher priority, are as before. A scheduler that starts again does the same.
func TestNodesAreReservedForAGangThatHasWaited(t *testing.T) {
	const kept = "reserved for gang default/big, which has waited 12h"
	w := unscheduled(t, node("a", 4), node("b", 4), node("c", 4), node("d", 4))
	w.add(on("a", "young", 4, 1))
	w.add(on("b", "aged", 4, 9))
	w.add(on("c", "aging", 3, 5))
	service := on("d", "service", 3, 99)
	service.Spec.RestartPolicy = corev1.RestartPolicyAlways
	w.add(service)
	c := withArgs(loaded(t, documented), args(""))
	w.schedule(c)
	w.old("big", 2, 4)
	w.rejected("big", "rejected by podgroup big: none of 2 fits, no node has room for a pod; 2 nodes are reserved for it")
	w.shows(map[string]float64{"heddle_scheduler_gang_reserved_nodes{default,big}": 2})
	// b and c are kept, d is not.
	w.add(pod("small-0", 1, nil))
	if at := w.whole("small-0", 1)["small-0"].Spec.NodeName; at != "d" {
		t.Errorf("small-0 is on %s", at)
	}
	w.add(pod("small-1", 1, nil))
	w.rejected("small-1", "node(s) "+kept)
	w.gang("later", 1, 1, 1)
	w.rejected("later-0", kept)
	w.add(pod("cpu", 0, nil))
	w.whole("cpu", 1)
	w.stop()
	w.add(pod("small-2", 1, nil))
	w.schedule(withArgs(loaded(t, documented), args("")))
	w.rejected("small-2", "node(s) "+kept)
	first := pod("first", 1, nil)
	first.Spec.Priority = new(int32(1))
	w.add(first)
	w.whole("first", 1)
	// What ends there is for the gang, however small the others are.
	w.delete("aged")
	w.rejected("big", "rejected by podgroup big: 1 of 2 fit")
	w.delete("aging")
	w.delete("first")
	pods := w.whole("big", 2)
	if got := pods["big-0"].Spec.NodeName + pods["big-1"].Spec.NodeName; got != "bc" && got != "cb" {
		t.Errorf("the gang is on %s, not on b and c", got)
	}
	if n := bound(pods, "small") + bound(pods, "later"); n != 1 {
		t.Errorf("%d pods that came later run", n)
	}
	w.delete("service")
	w.until("all bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "small")+bound(pods, "later") == 4 })
}

// Nobody waits for a gang that is gone.
func TestReservedNodesAreFreeOnceTheGangIsGone(t *testing.T) {
	w := start(t, args(""), node("a", 4), node("b", 4))
	w.add(on("a", "aged", 4, 9))
	w.old("big", 2, 4)
	w.rejected("big", "; 2 nodes are reserved for it")
	w.add(pod("small", 1, nil))
	w.rejected("small", "reserved for gang default/big")
	w.delete("big-0")
	w.whole("small", 1)
}

// Without the argument nothing is reserved.
func TestNoReservation(t *testing.T) {
	w := start(t, args(`"reserveAfter": "0s"`), node("a", 4), node("b", 4))
	w.add(on("a", "aged", 4, 9))
	w.old("big", 2, 4)
	w.rejected("big", "rejected by podgroup big: 1 of 2 fit")
	w.add(pod("small", 1, nil))
	w.whole("small", 1)
}
