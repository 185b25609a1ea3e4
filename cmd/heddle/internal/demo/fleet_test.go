package demo

import (
	"testing"
)

// A fleet has as many nodes as are asked for, each with names and ports of its own.
func TestFleet(t *testing.T) {
	for _, want := range []int{minNodes, 200, 257, 16_384} {
		names, guids, ports := map[string]bool{}, map[string]bool{}, map[[2]string]bool{}
		nodes, hcas := 0, 0
		for _, p := range newFleet(want) {
			nodes += len(p.nodes)
			hcas += len(p.nodes) * int(p.hcas)
			for i := range p.nodes {
				n := &p.nodes[i]
				names[n.name] = true
				if n.gpus != p.gpus || len(n.spec.Rails) != int(p.hcas) {
					t.Errorf("%d: %s has %d GPUs and %d HCAs", want, n.name, n.gpus, len(n.spec.Rails))
				}
				for _, r := range n.spec.Rails {
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
