//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A gang goes to the nodes that heddle plan has said. A second one does not fit then; the answer names when the first is
// expected to end, and is right: it fits once that is gone.
func TestGangAsPlanned(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.interval=500ms", "gpuScheduler.map.address=http://127.0.0.1:19424/node_group",
		"gpuScheduler.map.without=wait")
	names := []string{"planned-a0", "planned-b0", "planned-a1", "planned-b1"}
	at := f.leaves(t, 19424, map[string][]string{leafA: {names[0], names[2]}, leafB: {names[1], names[3]}})
	busy := f.pod("busy", 8, nil)
	busy.Spec.SchedulerName, busy.Spec.NodeSelector = schedulerName, map[string]string{"kubernetes.io/hostname": names[0]}
	f.create(t, busy)
	f.running(t, "busy", 1)
	gangIn := func(name string) string {
		file := filepath.Join(t.TempDir(), name+".yaml")
		var text strings.Builder
		for rank := range 2 {
			fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s-%[2]d
  labels: {pod-group.scheduling.sigs.k8s.io/name: %[1]s, pod-group.scheduling.sigs.k8s.io/min-available: "2"}
  annotations: {heddle.dev/gang-required-level: leaf, heddle.dev/expected-duration: 90m}
spec:
  schedulerName: %[3]s
  containers:
  - {name: main, image: "busybox:1.37", resources: {limits: {nvidia.com/gpu: 8, cpu: 1}}}
`, name, rank, schedulerName)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	plan := func(file string, want int) string {
		t.Helper()
		out, code := f.laptop(t).run(t, "plan", "-n", f.namespace, "--topo-master", "http://127.0.0.1:19424", "-f", file)
		t.Log(out)
		if code != want {
			t.Errorf("the exit code is %d, want %d", code, want)
		}
		return out
	}
	first, second := gangIn("first"), gangIn("second")
	out := plan(first, 0)
	f.kubectl(t, "-n", f.namespace, "apply", "-f", first)
	f.running(t, "first-", 2)
	for pod, node := range f.bound(t, "first-") {
		if !strings.Contains(out, "  "+node+"\n") || at[node] != leafB {
			t.Errorf("pod %s is on %s, which was not planned", pod, node)
		}
	}
	if out = plan(second, 1); !strings.Contains(out, "About when: in 89m, at ") || !strings.Contains(out, "after the end of "+f.namespace+"/first") {
		t.Error("it does not say when")
	}
	f.kubectl(t, "-n", f.namespace, "delete", "-f", first)
	plan(second, 0)
}
