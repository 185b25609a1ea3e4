package fabric_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
	n := node("a", onto("1"))
	s := put(m, n, node("b", onto("1")))
	if again := m.Snapshot(start); again != s {
		t.Error("nothing changed, and there is another snapshot")
	}
	for _, step := range []struct {
		name string
		do   func() *fabric.Snapshot
		want string
		why  []fabric.Reason
	}{
		{"not ready", func() *fabric.Snapshot {
			n.Ready, n.Since = false, start
			return put(m, n)
		}, "leaf-1(a:NotReady b):Degraded", []fabric.Reason{{Kind: fabric.ReasonNodeNotReady, Since: start}}},
		{"all not ready", func() *fabric.Snapshot {
			return put(m, fabric.Node{Name: "b", Report: read(onto("1")), Heartbeat: start})
		}, "leaf-1(a:NotReady b:NotReady):NotReady", []fabric.Reason{{Kind: fabric.ReasonNodeNotReady, Since: start}}},
		{"ready again", func() *fabric.Snapshot {
			n.Ready = true
			return put(m, n, node("b", onto("1")))
		}, "leaf-1(a b)", nil},
		{"not stale yet", func() *fabric.Snapshot { return m.Snapshot(start.Add(fabric.StaleAfter)) }, "leaf-1(a b)", nil},
		{"stale", func() *fabric.Snapshot {
			m.Heartbeat("b", start.Add(time.Minute))
			return m.Snapshot(start.Add(fabric.StaleAfter + 1))
		}, "leaf-1(a:Degraded b):Degraded", []fabric.Reason{{Kind: fabric.ReasonStale, Since: start.Add(fabric.StaleAfter)}}},
		{"a heartbeat", func() *fabric.Snapshot {
			m.Heartbeat("a", start.Add(5*time.Minute))
			return m.Snapshot(start.Add(fabric.StaleAfter + 2))
		}, "leaf-1(a b)", nil},
		{"from the future", func() *fabric.Snapshot {
			m.Heartbeat("a", start.Add(24*time.Hour))
			return m.Snapshot(start.Add(fabric.StaleAfter + 3))
		}, "leaf-1(a:Degraded b):Degraded", []fabric.Reason{{Kind: fabric.ReasonClock}}},
		{"its time has come", func() *fabric.Snapshot {
			m.Heartbeat("b", start.Add(24*time.Hour))
			return m.Snapshot(start.Add(24 * time.Hour))
		}, "leaf-1(a b)", nil},
		{"no report any more: the place is unknown, the age as well", func() *fabric.Snapshot {
			n.Report = nil
			m.Put(n)
			return m.Snapshot(start.Add(24 * time.Hour))
		}, "a leaf-1(b)", nil},
		{"gone", func() *fabric.Snapshot {
			m.Remove("a")
			m.Remove("unknown")
			return m.Snapshot(start.Add(24 * time.Hour))
		}, "leaf-1(b)", nil},
	} {
		s := step.do()
		if diff := cmp.Diff(step.want, outline(treeOf(s.Child))); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", step.name, diff)
		}
		for _, e := range s.Select("node", "a") {
			if diff := cmp.Diff(step.why, e.Reasons); diff != "" {
				t.Errorf("%s: reasons (-want +got):\n%s", step.name, diff)
			}
		}
	}
}
