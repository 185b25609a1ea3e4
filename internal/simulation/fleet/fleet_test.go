package fleet_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/internal/simulation/fleet"
)

// A fleet has as many nodes as are asked for, each with names and ports of its own.
func TestNew(t *testing.T) {
	for _, want := range []int{fleet.MinNodes, 200, 257, 16_384} {
		names, guids, ports := map[string]bool{}, map[string]bool{}, map[[2]string]bool{}
		nodes, hcas := 0, 0
		for _, p := range fleet.New(want) {
			nodes += len(p.Nodes)
			hcas += len(p.Nodes) * int(p.HCAs)
			for i := range p.Nodes {
				n := &p.Nodes[i]
				names[n.Name] = true
				if n.GPUs() != int(p.GPUs) || len(n.Spec.Rails) != int(p.HCAs) {
					t.Errorf("%d: %s has %d GPUs and %d HCAs", want, n.Name, n.GPUs(), len(n.Spec.Rails))
				}
				for _, r := range n.Spec.Rails {
					guids[r.GUID] = true
					ports[[2]string{r.Switch.ID, r.SwitchPort}] = true
				}
			}
		}
		if nodes != want || len(names) != want || len(guids) != hcas || len(ports) != hcas {
			t.Errorf("%d nodes: %d with %d names; %d HCAs with %d GUIDs on %d ports",
				want, nodes, len(names), hcas, len(guids), len(ports))
		}
	}
}

// Rewire moves one cable of a copy.
func TestRewire(t *testing.T) {
	p := &fleet.New(fleet.MinNodes)[0]
	n, other := &p.Nodes[2*p.Group], &p.Nodes[0]
	got := fleet.Rewire(n, other, 5, 9)
	for i, r := range got.Spec.Rails {
		want := n.Spec.Rails[i]
		if i == 5 {
			want.Switch, want.SwitchPort = other.Spec.Rails[i].Switch, "9"
		}
		if diff := cmp.Diff(want, r); diff != "" {
			t.Errorf("rail %d (-want +got):\n%s", i, diff)
		}
	}
	if n.Spec.Rails[5].Switch.Name != "su3-rail5" {
		t.Errorf("the node's own cable goes to %s", n.Spec.Rails[5].Switch.Name)
	}
}
