package nodesync

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestWatchSignalsWhatBearsOnUs(t *testing.T) {
	signaled := func(w *Watch) bool {
		select {
		case <-w.Changed():
			return true
		default:
			return false
		}
	}
	step := func(name string, w *Watch, n *corev1.Node, want bool) {
		t.Helper()
		if err := w.Update(n); err != nil {
			t.Fatal(err)
		}
		if got := signaled(w); got != want {
			t.Errorf("%s: signal %v, want %v", name, got, want)
		}
	}
	w := NewWatch(nil, "n1")
	step("the first version", w, node("1", map[string]string{"a": "1"}), true)
	heartbeat := node("2", map[string]string{"a": "1"})
	heartbeat.Status.NodeInfo.KernelVersion = "6.12"
	step("a heartbeat", w, heartbeat, false)
	if w.Node().Status.NodeInfo.KernelVersion != "" {
		t.Error("the status is kept in memory")
	}
	step("a label that somebody changed", w, node("3", map[string]string{"a": "2"}), true)
	tainted := node("4", map[string]string{"a": "2"})
	tainted.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	step("a taint", w, tainted, true)

	w.Keep(node("9", nil))
	if err := w.Update(node("8", nil)); err != nil || w.Node().ResourceVersion != "9" {
		t.Errorf("an older version replaced a newer one: %s, %v", w.Node().ResourceVersion, err)
	}
	if err := w.Replace(nil, ""); err != nil || w.Node() != nil || !signaled(w) {
		t.Error("a deleted Node is still there")
	}
}
