package fabric_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/worker"
)

// TestSilentSourceMovesNobody: cables do not move because a server is silent.
func TestSilentSourceMovesNobody(t *testing.T) {
	t.Parallel()
	m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
	silent := func(sure int32, stale ...v1alpha1.StaleSource) *v1alpha1.NodeTopologySpec {
		spec := report(cable{leaf: "1", sure: sure})
		spec.Stale = stale
		return spec
	}
	put(m, node("a", silent(80)), node("b", silent(80)))
	old := v1alpha1.StaleSource{Source: v1alpha1.SourceClusterManager, Since: metav1.NewTime(start), Reason: "no answer"}
	s := put(m, node("a", silent(worker.Remembered, old)), node("b", silent(worker.Remembered, old)))
	if diff := cmp.Diff("leaf-1(a b)", outline(treeOf(s.Child))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []fabric.Reason{{Kind: fabric.ReasonSource, Since: start.UTC()}}
	for _, e := range s.Select("node", "") {
		if diff := cmp.Diff(want, e.Reasons); diff != "" {
			t.Errorf("%s: reasons (-want +got):\n%s", e.Name, diff)
		}
	}
}

// TestNodeWithoutGroupStatesWhy: the switch behind its ports is unknown.
func TestNodeWithoutGroupStatesWhy(t *testing.T) {
	t.Parallel()
	s := put(newMap(fabric.Preset(fabric.ModeLeaf, 0)...), node("a", report(cable{rail: 0}, cable{rail: 1})))
	want := []fabric.Reason{{Kind: string(fabric.Unseen), Count: 2}}
	if diff := cmp.Diff(want, s.Child[0].Reasons); diff != "" || s.Child[0].Status != v1alpha1.StatusReady {
		t.Errorf("%s, reasons (-want +got):\n%s", s.Child[0].Status, diff)
	}
}
