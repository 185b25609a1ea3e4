package fabric_test

import (
	"fmt"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// boards returns nodes under directors. A source gives each board a GUID, as a cluster manager does. The
// nodes' cables fill the ports in order, and a node's may be on two boards.
func boards(nodes, rails, ports int) *fabrics.Fabric {
	f := fabrics.New(fabrics.Plan{Sizes: []int{nodes}, Rails: rails, PerLeaf: rails})
	for i := range f.Nodes {
		for j := range f.Nodes[i].Spec.Rails {
			port := i*rails + j
			r := &f.Nodes[i].Spec.Rails[j]
			r.Switch, r.SwitchPort = &v1alpha1.Switch{ID: fmt.Sprintf("b83fd2%010x", port/ports)}, fmt.Sprint(port%ports+1)
		}
	}
	return f
}

// A board with a GUID of its own is a leaf. Where cables go on to the next board no cable is wrong, and a wrong one is
// named all the same.
func TestBoards(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{9, 40, 100, 400} {
		for _, rails := range []int{4, 8} {
			for _, ports := range []int{18, 20, 24, 32, 36, 40, 64} {
				f := boards(nodes, rails, ports)
				if list := mapOf(fabric.ModeLeaf, f).Snapshot(start).Findings(); len(list) > 0 {
					t.Errorf("%d nodes, %d rails, boards of %d: %d findings: %+v", nodes, rails, ports, len(list), list[0])
				}
				if nodes < 100 {
					continue
				}
				wrong := &f.Nodes[nodes/2].Spec.Rails[rails/2]
				wrong.Switch = f.Nodes[2].Spec.Rails[0].Switch
				if list := mapOf(fabric.ModeLeaf, f).Snapshot(start).Findings(); len(list) != 1 || list[0].Rail != wrong.Rail {
					t.Errorf("%d nodes, %d rails, boards of %d: %d findings for one wrong cable", nodes, rails, ports, len(list))
				}
			}
		}
	}
}
