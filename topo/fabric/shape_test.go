package fabric_test

import (
	"fmt"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// with are n nodes of the group su that have the given rails, each on a leaf of
// its own.
func with(n int, su string, rails ...int32) []fabric.Node {
	out := make([]fabric.Node, n)
	for i := range out {
		var cables []cable
		for _, rail := range rails {
			cables = append(cables, cable{rail: rail, leaf: fmt.Sprintf("%s%x", su, rail)})
		}
		out[i] = node(fmt.Sprintf("%s-%v-%d", su, rails, i), report(cables...))
	}
	return out
}

// A node that lost HCAs is distinguished from a model that never had them.
func TestShapes(t *testing.T) {
	t.Parallel()
	all := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	for _, tt := range []struct {
		name    string
		nodes   [][]fabric.Node
		gpus    bool
		missing int
	}{
		{"one lost one", [][]fabric.Node{with(30, "a", all...), with(1, "a", all[1:]...)}, true, 1},
		{"one lost three", [][]fabric.Node{with(30, "a", all...), with(1, "a", all[3:]...)}, true, 3},
		{"three lost the same", [][]fabric.Node{with(30, "a", all...), with(3, "a", all[1:]...)}, true, 3},
		{"three lost the same two", [][]fabric.Node{with(64, "a", all...), with(3, "a", all[2:]...)}, true, 6},
		{"two of two", [][]fabric.Node{with(5, "a", 0, 1), with(1, "a", 1)}, true, 1},
		{"a model with half of them", [][]fabric.Node{with(30, "a", all...), with(10, "a", all[:4]...)}, true, 0},
		{"two nodes of such a model", [][]fabric.Node{with(30, "a", all...), with(2, "a", all[:4]...)}, true, 0},
		{"a model with one less", [][]fabric.Node{with(30, "a", all...), with(20, "b", all[:7]...)}, true, 0},
		{"two show nothing", [][]fabric.Node{with(2, "a", all...), with(1, "a", all[:7]...)}, true, 0},
		{"a gap shows that there was one", [][]fabric.Node{with(2, "a", all...), with(1, "a", 0, 1, 3, 4, 5, 6, 7)}, true, 1},
		{"without GPUs", [][]fabric.Node{with(30, "a", all...), with(1, "a", all[1:]...)}, false, 0},
	} {
		m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
		for _, nodes := range tt.nodes {
			for _, n := range nodes {
				if !tt.gpus {
					spec := n.Report.Spec()
					spec.Accelerators = nil
					n.Report = read(spec)
				}
				m.Put(n)
			}
		}
		missing(t, tt.name, m, tt.missing)
	}
}

func missing(t *testing.T, what string, m *fabric.Builder, want int) {
	t.Helper()
	list := m.Snapshot(start).Findings()
	for _, f := range list {
		if f.Kind != fabric.Missing {
			t.Errorf("%s: %+v", what, f)
		}
	}
	if len(list) != want {
		t.Errorf("%s: %d findings, want %d missing", what, len(list), want)
	}
}

// A model that comes into the fleet is felt in other groups, and when it goes.
func TestShapesComeAndGo(t *testing.T) {
	t.Parallel()
	m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
	m.Put(with(30, "a", 0, 1, 2, 3)...)
	m.Put(with(3, "a", 0, 1, 2)...)
	missing(t, "three lost one", m, 3)
	model := with(10, "b", 0, 1, 2)
	m.Put(model...)
	missing(t, "ten more like them", m, 0)
	for _, n := range model {
		m.Remove(n.Name)
	}
	missing(t, "without those", m, 3)
	// One that loses its ports' link has none the less.
	spec := with(1, "a", 0, 1, 2, 3)[0].Report.Spec()
	spec.Rails[3].LinkState = v1alpha1.LinkDown
	m.Put(node("down", spec))
	if list := m.Snapshot(start).Findings(); len(list) != 4 {
		t.Errorf("%d findings, want three lost HCAs and a dead port", len(list))
	}
}
