package topo

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// The tree has no NVLink domain that is across leaf groups: they are listed below it.
func TestCrossing(t *testing.T) {
	node := func(name string) snapshot.Element { return snapshot.Element{Name: name, Kind: "node", Status: "Ready"} }
	leaf := func(name string, nodes ...snapshot.Element) snapshot.Element {
		return snapshot.Element{Name: name, Kind: "leaf", Status: "Ready", Nodes: &fabric.Count{Ready: len(nodes)}, Child: nodes}
	}
	all := &snapshot.Topology{Tree: []snapshot.Element{leaf("leaf-a", node("n1"), node("n2")), leaf("leaf-b", node("n3"))}}
	if got := crossing(all); got != "" {
		t.Errorf("without any: %s", got)
	}
	all.Crossing = []snapshot.Domain{{Name: "nvlink-x.1", Kind: "nvlink", Status: "Ready", Nodes: []string{"n1", "n2", "n3"}}}
	want := `ACROSS GROUPS  KIND    STATUS  NODES  IN
nvlink-x.1     nvlink  Ready   3      leaf-a (2), leaf-b (1)

`
	if diff := cmp.Diff(want, crossing(all)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
