//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestWhy asks the CLI about gangs that the real scheduler leaves without nodes: one
// behind others, one that no leaf holds.
func TestWhy(t *testing.T) {
	const port = 19491
	f := newFleet(t, fmt.Sprintf("gpuScheduler.map.address=http://127.0.0.1:%d/node_group", port),
		"gpuScheduler.map.interval=500ms")
	f.leaves(t, port, map[string][]string{leafA: numbered("why-a", 2), leafB: numbered("why-b", 2)})
	l := f.laptop(t)
	answers := func(name string, want ...string) {
		t.Helper()
		var out string
		eventually(t, func() string {
			out, _ = l.run(t, "why", "-n", f.namespace, name, "--topo-master", fmt.Sprintf("http://127.0.0.1:%d", port))
			for _, text := range want {
				if !strings.Contains(out, text) {
					return fmt.Sprintf("no %q in\n%s", text, out)
				}
			}
			return ""
		})
		t.Log(out)
	}
	f.gang(t, "large", 3, map[string]string{inOneLeaf: "leaf"})
	answers("large", "Gang "+f.namespace+"/large: 0 of 3 pods have a node; 3 must before any starts.", "rejected by podgroup large: 2 of 3 fit",
		"2 of 3", "without the required level leaf: 3 pods")
	f.kubectl(t, "delete", "pods", "-n", f.namespace, "--all", "--grace-period=0", "--force")

	f.gang(t, "first", 2, map[string]string{inOneLeaf: "leaf", "heddle.dev/expected-duration": "90m"})
	f.gang(t, "second", 2, map[string]string{inOneLeaf: "leaf"})
	f.running(t, "first", 2)
	f.running(t, "second", 2)
	f.gang(t, "third", 2, map[string]string{inOneLeaf: "leaf"})
	answers("third-1", "nvidia.com/gpu: 0 of 8 free, asked for 8", "0 of 2", f.namespace+"/first: 16 nvidia.com/gpu for ", ", ends in ",
		f.namespace+"/second: 16 nvidia.com/gpu", "for none of these pods, on any node")

	f.kubectl(t, "delete", "pods", "-n", f.namespace, "first-0", "first-1", "--grace-period=0", "--force")
	f.running(t, "third", 2)
	answers("third", "Gang "+f.namespace+"/third waits for no node: every pod has one.")
}
