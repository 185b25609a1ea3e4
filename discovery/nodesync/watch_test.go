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
	step("a label that another client changed", w, node("3", map[string]string{"a": "2"}), true)
	tainted := node("4", map[string]string{"a": "2"})
	tainted.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	step("a taint", w, tainted, true)
	cordoned := tainted.DeepCopy()
	cordoned.ResourceVersion = "5"
	cordoned.Annotations = map[string]string{"heddle.dev/cordoned-gpus": "GPU-a"}
	step("a GPU that an operator took out", w, cordoned, true)

	released := cordoned.DeepCopy()
	released.ResourceVersion = "6"
	released.Annotations["heddle.dev/gpu-release"] = `{"until":"2026-11-22T23:30:00Z"}`
	step("a release of the GPUs", w, released, true)

	w.Keep(node("9", nil))
	if err := w.Update(node("8", nil)); err != nil || w.Node().ResourceVersion != "9" {
		t.Errorf("an older version replaced a newer one: %s, %v", w.Node().ResourceVersion, err)
	}
	if err := w.Replace(nil, ""); err != nil || w.Node() != nil || !signaled(w) {
		t.Error("a deleted Node is still there")
	}
	if w.Keep(node("9", nil)); w.Node() != nil {
		t.Error("the answer to a write brought a deleted Node back")
	}
}

func TestFollowedAnnotations(t *testing.T) {
	w := NewWatch(nil, "n1", "example.com/lock", "example.com/cards")
	signaled := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	at := func(version string, annotations map[string]string) *corev1.Node {
		n := node(version, nil)
		n.Annotations = annotations
		return n
	}
	for _, step := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"the first version", func() error { return w.Update(at("1", nil)) }, true},
		{"a heartbeat", func() error { return w.Update(at("2", nil)) }, false},
		{"its annotation", func() error { return w.Update(at("3", map[string]string{"example.com/lock": ""})) }, true},
		{"another", func() error {
			return w.Update(at("4", map[string]string{"example.com/lock": "", "example.com/other": "x"}))
		}, false},
		{"removed", func() error { return w.Update(at("5", map[string]string{"example.com/other": "x"})) }, true},
		{"what it wrote itself", func() error {
			n := at("6", map[string]string{"example.com/cards": "[]", "example.com/other": "x"})
			w.Keep(n)
			return w.Update(n)
		}, false},
		{"deleted", func() error { return w.Delete(nil) }, true},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := signaled(w.Followed()); got != step.want {
			t.Errorf("%s: received %t, want %t", step.name, got, step.want)
		}
	}
}
