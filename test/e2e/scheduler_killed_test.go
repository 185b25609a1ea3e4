//go:build e2e && linux

package e2e

import (
	"fmt"
	"maps"
	"testing"
)

const (
	// fast is the chart's.
	fast = "qps: 1000, burst: 2000"
	// slow is slow enough to be stopped in the middle of a gang.
	slow = "qps: 4, burst: 4"
)

// halfBound makes a gang of n pods for one leaf, and waits until a quarter of
// them have their nodes.
func (f *fleet) halfBound(t *testing.T, name string, n int) {
	t.Helper()
	f.gang(t, name, n, 1, map[string]string{"heddle.dev/gang-required-level": "leaf"})
	eventually(t, func() string {
		if got := len(f.bound(t, name)); got < n/4 {
			return fmt.Sprintf("%d pods are bound", got)
		}
		return ""
	})
}

// middle are the bound pods of a gang of n that no scheduler binds any longer.
func (f *fleet) middle(t *testing.T, name string, n int) map[string]string {
	t.Helper()
	on := f.bound(t, name)
	if len(on) == 0 || len(on) == n {
		t.Fatalf("%d of %d are bound: the scheduler was not stopped in the middle", len(on), n)
	}
	t.Logf("stopped with %d of %d bound", len(on), n)
	return on
}

// whole waits until a gang of n runs, in one leaf, where its first pods were
// bound, and no node has more than its 8 GPUs.
func (f *fleet) whole(t *testing.T, name string, n int, at, first map[string]string) (leaf string) {
	t.Helper()
	for node, pods := range f.running(t, name, n) {
		if pods > 8 || leaf != "" && at[node] != leaf {
			t.Errorf("%d pods of %s on %s of leaf %s", pods, name, node, at[node])
		}
		leaf = at[node]
	}
	now := f.bound(t, name)
	for pod, node := range first {
		if now[pod] != node {
			t.Errorf("%s was on %s and is on %q", pod, node, now[pod])
		}
	}
	return leaf
}

// TestSchedulerKilled ends the scheduler while a gang is half bound, and the
// next one as well: the third finishes the gang in its leaf, although others
// that came first by name want the rest of it. No node holds more than it has,
// and what is free is counted once.
func TestSchedulerKilled(t *testing.T) {
	f := idleFleet(t, shared(t), "gpuScheduler.map.address=http://127.0.0.1:19412/node_group", "gpuScheduler.map.interval=500ms",
		"gpuScheduler.map.without=wait")
	_, at := f.leaves(t, 19412, map[string][]string{leafA: numbered("kill-a", 3), leafB: numbered("kill-b", 3)})
	f.replace(t, fast, slow)
	f.start(t)
	const pods = 24
	f.halfBound(t, "half", pods)
	f.kill(t)
	first := f.middle(t, "half", pods)
	f.gang(t, "eager", pods-len(first), 1, map[string]string{"heddle.dev/gang-required-level": "leaf"})
	f.start(t)
	eventually(t, func() string {
		if got := len(f.bound(t, "half")); got <= len(first) {
			return fmt.Sprintf("%d pods are bound, as before", got)
		}
		return ""
	})
	f.kill(t)
	second := f.middle(t, "half", pods)
	maps.Copy(second, first)
	f.replace(t, slow, fast)
	f.start(t)
	leaf := f.whole(t, "half", pods, at, second)
	if other := f.whole(t, "eager", pods-len(first), at, nil); other == leaf {
		t.Errorf("both gangs are in leaf %s", leaf)
	}
	// What is left in the other leaf is the whole truth.
	f.gang(t, "next", len(first), 1, map[string]string{"heddle.dev/gang-required-level": "leaf"})
	f.whole(t, "next", len(first), at, nil)
	on := map[string]int{}
	for _, node := range f.bound(t, "") {
		on[node]++
	}
	for node := range at {
		if on[node] != 8 {
			t.Errorf("%d pods on the 8 GPUs of %s", on[node], node)
		}
	}
	f.gang(t, "over", 1, 1, nil)
	t.Log(f.rejected(t, "over", 1, "rejected by podgroup over"))
}
