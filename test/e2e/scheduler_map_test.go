//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"
)

// TestMapGone: a topo-master ends, and gangs are placed by the last good tree. A gang that was
// never without one waits for none. What becomes of a tree that is too old is a test of
// topo/scheduler/topologyclient.
func TestMapGone(t *testing.T) {
	const port = 19413
	f := newFleet(t, fmt.Sprintf("gpuScheduler.map.address=http://127.0.0.1:%d/node_group", port), "gpuScheduler.map.interval=500ms")
	m, at := f.leaves(t, port, map[string][]string{leafA: numbered("away-a", 2), leafB: numbered("away-b", 3)})
	gang := func(name string, n, gpus int, leaf string) {
		t.Helper()
		f.gang(t, name, n, gpus, map[string]string{inOneLeaf: "leaf", "heddle.dev/gang-without-map": "wait"})
		for node := range f.running(t, name, n) {
			if at[node] != leaf {
				t.Errorf("%s is on %s", name, node)
			}
		}
	}
	gang("with", 2, 8, leafA)
	m.stop()
	gang("without", 3, 4, leafB)
	f.startTopoMaster(t, "back", port, "--exports", "none")
	gang("again", 3, 4, leafB)
}
