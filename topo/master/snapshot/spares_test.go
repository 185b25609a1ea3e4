package snapshot_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// Whole idle nodes of each leaf are kept, as many as wanted at most.
func TestSpares(t *testing.T) {
	for _, tt := range []struct {
		want string
		busy int // Nodes from the first one with a pod.
		kept int
	}{{"0", 0, 0}, {"2", 0, 4}, {"10%", 0, 8}, {"2", 31, 3}, {"2", 64, 0}} {
		all := fleet(t, 64, 64)
		all.Spares = intstr.Parse(tt.want)
		topology := all.Topology()
		i := 0
		kept := 0
		var visit func(list []snapshot.Element, do func(*snapshot.Element))
		visit = func(list []snapshot.Element, do func(*snapshot.Element)) {
			for i := range list {
				if list[i].Nodes == nil {
					do(&list[i])
				}
				visit(list[i].Child, do)
			}
		}
		visit(topology.Tree, func(e *snapshot.Element) {
			if i++; i <= tt.busy {
				all.Nodes[e.Name].Used = 1
			}
		})
		visit(all.Topology().Tree, func(e *snapshot.Element) {
			if e.Spare {
				kept++
				if *e.GPUs.Free != e.GPUs.Offered {
					t.Errorf("%s: node %s is kept and not idle", tt.want, e.Name)
				}
			}
		})
		if kept != tt.kept {
			t.Errorf("%s with %d busy nodes: %d are kept, want %d", tt.want, tt.busy, kept, tt.kept)
		}
	}
}
