package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// TestOveruseIsEvicted: a pod over its share of memory is warned and then evicted, also one
// of no controller; a static pod and one of another enforcer stay.
func TestOveruseIsEvicted(t *testing.T) {
	r, c := sharer(t, "gpus: [0], enforce: {memory: none, compute: none, evict: {after: 0s, grace: 20s}}")
	uuid := r.source.get().GPUs[0].UUID
	r.run()
	r.list("nvidia.com/sgpu", 16, 0)
	used := map[consumer]consumed{}
	var allocations []report.Binding
	for _, name := range []string{"greedy", "static", "counted", "polite"} {
		r.create(wish(name, map[string]string{"nvidia.com/sgpu": "1"}, nil))
		b := consumerOf(name, "main", config.EnforceEvict, uuid) // 30 % and 4 GiB.
		b.Enforced.Compute, b.Policy = config.EnforceNone, "fixed-share"
		now := consumed{5 << 30, 20}
		switch name {
		case "counted":
			b.Enforced.Memory = config.EnforceNone
		case "polite":
			now = consumed{4 << 30, 60}
		}
		allocations = append(allocations, b)
		used[consumer{b.Namespace, b.Pod, b.UID, b.Container, uuid}] = now
	}
	r.api.EditPod("static", func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uidOf("static")}
	})
	until(t, "the static pod", func() bool {
		pods, _, _ := r.API.Pods()
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == "static" && len(p.Annotations) > 0 })
	})
	begin := time.Now()
	for i := range 4 {
		r.usage.overuse.round(t.Context(), begin.Add(time.Duration(i)*10*time.Second), allocations, used)
	}
	r.api.Wait(t, "the Events", func() bool {
		return has(r.api.warnings, "default/greedy ShareExceeded: container main has 5120 MiB of GPU 0, and its share is 4096 MiB; "+
			"the pod is evicted if that is so in 20s") &&
			has(r.api.warnings, "default/greedy ShareEvicted: container main has 5120 MiB of GPU 0") &&
			has(r.api.warnings, "default/polite ShareExceeded: container main uses GPU 0 for 60 % of the time, and its share is 30 %")
	})
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if got := slices.Compact(slices.Clone(c.Evicted)); !slices.Equal(got, []string{"greedy " + uidOf("greedy")}) {
		t.Errorf("evicted %q", got)
	}
	if has(r.api.warnings, "static Share") || has(r.api.warnings, "counted Share") || has(r.api.warnings, "polite ShareEvicted") {
		t.Errorf("warnings %q", r.api.warnings)
	}
	if got := r.samples("heddle_overuse_evictions_total"); got["memory"] != 2 || got["full"] != 0 {
		t.Errorf("evictions %v", got)
	}
}

func TestUses(t *testing.T) {
	r := newRig(t, "dgx-h100")
	m := r.source.get()
	high := wish("high", nil, nil)
	high.Spec.Priority = new(int32(1000))
	leaves := wish("leaves", nil, nil)
	leaves.DeletionTimestamp = new(metav1.Now())
	b := consumerOf("high", "main", config.EnforceEvict, m.GPUs[1].UUID)
	b.Policy, b.Enforced.Compute = "burst-share", config.EnforceNone
	all := []report.Binding{
		b, consumerOf("leaves", "main", config.EnforceEvict, m.GPUs[1].UUID),
		consumerOf("unknown", "main", config.EnforceEvict, m.GPUs[1].UUID), consumerOf("high", "lost", config.EnforceEvict, "GPU-lost"),
	}
	got := uses(m, all, map[consumer]consumed{{"default", "high", uidOf("high"), "main", m.GPUs[1].UUID}: {7, 80}},
		map[string]*corev1.Pod{uidOf("high"): high, uidOf("leaves"): leaves})
	one := func(pod string) enforce.Use {
		return enforce.Use{
			Namespace: "default", Pod: pod, UID: uidOf(pod), Container: "main", GPU: m.GPUs[1].UUID, Index: 1,
			Total: m.GPUs[1].MemoryMiB << 20, Share: 4 << 30, Used: unknown, SM: unknown,
		}
	}
	first, second := one("high"), one("leaves")
	second.Evictable, second.Terminating = true, true
	first.Used, first.SM, first.Priority, first.Evictable = 7, 80, 1000, true
	if diff := cmp.Diff([]enforce.Use{first, second}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
