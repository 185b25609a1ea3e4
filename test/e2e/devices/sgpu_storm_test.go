//go:build e2e && linux

package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestHundredSGPUPodsAtOnce creates a hundred pods at once that ask for
// different shares of eight GPUs. No scheduler chooses GPUs: the node chooses one
// for each. Every container can open its card and no other, knows its share, and
// no card gives out more than it has, by every count.
func TestHundredSGPUPodsAtOnce(t *testing.T) {
	const burst = 100
	r := newRig(t, options{name: "slices", config: sharedGPUs})
	r.waitShares(t, allSlots, allCores, allGiB)
	// They fit in any order: 650 % of 800 in all; a GPU that rejects a pod
	// has 16 consumers, or 93 % or 75 GiB given out.
	cores := func(i int) int { return 5 + i%4 }
	gib := func(i int) int { return 1 + i%5 }
	mark := r.plugin.log.mark()
	r.storm(t, burst, func(i int) *corev1.Pod {
		return r.pod(fmt.Sprintf("slice-%03d", i), box{more: share(cores(i), gib(i))})
	})

	held, steered := r.held(t), 0
	byTest := tally{}
	for i := range burst {
		pod := fmt.Sprintf("slice-%03d", i)
		k := key(pod, "app")
		mine := r.hasShares(t, pod, "app", 0, slice(cores(i), gib(i)))
		byTest.add(mine)
		got := map[string]int{}
		for resource, ids := range held[k] {
			got[resource] = len(ids)
		}
		want := map[string]int{slotResource: 1, coreResource: cores(i), memoryResource: gib(i)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: devices in PodResources (-want +got):\n%s", k, diff)
		}
		if len(mine) == 1 && slices.ContainsFunc(held[k][slotResource], func(id string) bool { return deviceIDOf(id) == mine[0].UUID }) {
			steered++
		}
	}
	// What containers see, what pods are annotated with, what the plugin and the
	// Node report: all the same.
	if diff := cmp.Diff(byTest, r.count(t)); diff != "" {
		t.Errorf("given out of cards (-seen by containers +annotations):\n%s", diff)
	}
	t.Logf("the kubelet's ticket names the bound card for %d of %d pods; %d cards in use: %+v",
		steered, burst, len(byTest), slices.Collect(maps.Values(byTest)))
	for line := range strings.Lines(r.plugin.log.since(mark)) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "msg=rejected") {
			t.Errorf("the plugin complains, and all pods fit: %s", line)
		}
	}
}
