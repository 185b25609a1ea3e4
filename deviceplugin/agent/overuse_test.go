package agent

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/nodeapi"
)

// TestOveruseIsEvicted: a pod over its share of memory is warned and then evicted, also one
// without a controller; a pod of another enforcer stays, and one over its compute is warned.
func TestOveruseIsEvicted(t *testing.T) {
	api := nodeapi.New(t, "gpu-1")
	client := apiserver.New(api.Client(), "gpu-1", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	m := machines.Load(t, "dgx-h100")
	uuid := m.GPUs[0].UUID
	used, pods := map[consumer]consumed{}, []*corev1.Pod{}
	var allocations []report.Binding
	for name, now := range map[string]consumed{"greedy": {5 << 30, 20}, "counted": {5 << 30, 20}, "polite": {4 << 30, 60}} {
		pods = append(pods, podOf(name))
		b := consumerOf(name, "main", config.EnforceEvict, uuid) // 30 % and 4 GiB.
		b.Enforced.Compute, b.Policy = config.EnforceNone, "fixed-share"
		if name == "counted" {
			b.Enforced.Memory = config.EnforceNone
		}
		allocations = append(allocations, b)
		used[consumer{b.Namespace, b.Pod, b.UID, b.Container, uuid}] = now
	}
	o, begin := newOveruse(client), time.Now()
	for i := range 5 {
		at := begin.Add(time.Duration(i) * 30 * time.Second)
		o.check(ctx, at, uses(m, allocations, used, pods))
	}
	want := []string{
		"greedy ShareEvicted container main has 5120 MiB of GPU 0, and its share is 4096 MiB",
		"greedy ShareExceeded container main has 5120 MiB of GPU 0, and its share is 4096 MiB; the pod is evicted if that is so in 1m0s",
		"polite ShareExceeded container main uses GPU 0 for 60 % of the time, and its share is 30 %; nothing limits it (sgpu.enforce.compute)",
	}
	api.Wait(t, "the Events", func() bool { return len(api.Events) == len(want) })
	var events []string
	for i := range api.Events {
		e := &api.Events[i]
		events = append(events, e.InvolvedObject.Name+" "+e.Reason+" "+e.Message)
	}
	slices.Sort(events)
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if got := slices.Compact(api.Evicted); !slices.Equal(got, []string{"greedy " + uidOf("greedy")}) {
		t.Errorf("evicted %q", got)
	}
	evictions := []string{"heddle_overuse_evictions_total{reason=full} 0", "heddle_overuse_evictions_total{reason=memory} 2"}
	if diff := cmp.Diff(evictions, series(t, uuid, o.evicted)); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}

func TestUses(t *testing.T) {
	m := machines.Load(t, "dgx-h100")
	high := podOf("high")
	high.Spec.Priority = new(int32(1000))
	leaves, static := podOf("leaves"), podOf("static")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	leaves.DeletionTimestamp = new(metav1.Now())
	b := consumerOf("high", "main", config.EnforceEvict, m.GPUs[1].UUID)
	b.Policy, b.Enforced.Compute = "burst-share", config.EnforceNone
	mirrored := consumerOf("static", "main", config.EnforceEvict, m.GPUs[1].UUID)
	mirrored.UID = "hash"
	all := []report.Binding{
		b, mirrored, consumerOf("leaves", "main", config.EnforceEvict, m.GPUs[1].UUID),
		consumerOf("unknown", "main", config.EnforceEvict, m.GPUs[1].UUID), consumerOf("high", "lost", config.EnforceEvict, "GPU-lost"),
	}
	got := uses(m, all, map[consumer]consumed{{"default", "high", uidOf("high"), "main", m.GPUs[1].UUID}: {7, 80}},
		[]*corev1.Pod{high, leaves, static})
	one := func(pod string) enforce.Use {
		return enforce.Use{
			Namespace: "default", Pod: pod, UID: uidOf(pod), Container: "main", GPU: m.GPUs[1].UUID, Index: 1,
			Total: m.GPUs[1].MemoryMiB << 20, Share: 4 << 30, Used: unknown, SM: unknown,
		}
	}
	first, second := one("high"), one("leaves")
	second.Evictable, second.Terminating = true, true
	first.Used, first.SM, first.Priority, first.Evictable = 7, 80, 1000, true
	mirror := one("static")
	mirror.UID = "hash"
	if diff := cmp.Diff([]enforce.Use{first, mirror, second}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
