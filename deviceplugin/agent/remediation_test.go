package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/nodeapi"
)

// remedied is whether the Node has the taint, and its last condition of remediation.
func (r *rig) remedied() (tainted bool, condition health.Condition) {
	r.api.Mu.Lock()
	defer r.api.Mu.Unlock()
	for _, c := range r.api.conditions {
		if c.Type == wellknown.ConditionRemediation {
			condition = c
		}
	}
	tainted = slices.Contains(r.api.Node.Spec.Taints, corev1.Taint{Key: wellknown.UnhealthyGPU, Effect: corev1.TaintEffectNoSchedule})
	return tainted, condition
}

func (r *rig) awaitRemedy(t *testing.T, tainted bool, reason, message string) {
	t.Helper()
	until(t, "condition "+reason, func() bool {
		is, c := r.remedied()
		return is == tainted && c.True == tainted && c.Reason == reason && strings.Contains(c.Message, message)
	})
}

// TestRemediation loses a GPU that three pods have a part in: the node is cordoned, the pod
// that a controller makes again is evicted, and both are undone when the GPU is back.
func TestRemediation(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.configure("health: {upAfter: 0s, remediation: drain, remediateAfter: 1s}")
	r.api.EditNode(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "example.com/mine", Effect: corev1.TaintEffectNoSchedule}}
	})
	r.run()
	r.list(gpus, 8, 0)
	var lost []string
	for _, name := range []string{"deployed", "bare", "other"} {
		p := wish(name, map[string]string{gpus: "1"}, nil)
		p.Status.Phase = corev1.PodRunning
		if name != "bare" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", Controller: new(true)}}
		}
		r.create(p)
		held := r.admit(name, map[string]int{gpus: 1})[gpus]
		r.start(name)
		if name != "other" {
			lost = append(lost, held...)
		}
	}
	set := func(state machine.Health) {
		r.alter(func(m *machine.Machine) {
			for i := range m.GPUs {
				if slices.Contains(lost, m.GPUs[i].UUID) {
					m.GPUs[i].Health = state
				}
			}
		})
	}
	set(machine.Health{State: machine.Lost, Reason: "fell off the bus"})
	r.list(gpus, 6, 2)
	until(t, "an eviction", func() bool {
		r.api.Mu.Lock()
		defer r.api.Mu.Unlock()
		return len(r.api.Evicted) > 0
	})
	r.awaitRemedy(t, true, "Draining", "default/bare")
	r.api.Wait(t, "the Events", func() bool {
		return has(r.api.notices, wellknown.EventRemediationStarted+" the Node has the taint heddle.dev/gpu-unhealthy, by policy drain: ") &&
			has(r.api.warnings, "default/deployed "+wellknown.EventUnhealthyGPUEvicted)
	})
	r.kubelet.Delete("default", "deployed")
	r.kubelet.Delete("default", "bare")
	r.api.RemovePods()
	r.awaitRemedy(t, true, "Drained", "heddle gpu release --node gpu-1 --gpu "+slices.Sorted(slices.Values(lost))[0])

	// A restart knows health since then only, and keeps what was done.
	r.again(t)
	r.list(gpus, 6, 2)
	if tainted, _ := r.remedied(); !tainted {
		t.Error("the taint is gone after a restart")
	}
	set(machine.Health{State: machine.Healthy})
	r.awaitRemedy(t, false, "NotNeeded", "")
	r.api.Wait(t, "the Event", func() bool { return has(r.api.notices, wellknown.EventRemediationEnded) })
	r.api.Mu.Lock()
	defer r.api.Mu.Unlock()
	if got := r.api.Node.Spec.Taints; len(got) != 1 || got[0].Key != "example.com/mine" {
		t.Errorf("taints %v are left", got)
	}
	for _, evicted := range r.api.Evicted {
		if evicted != "deployed "+uidOf("deployed") {
			t.Errorf("evicted %q", r.api.Evicted)
		}
	}
}

// TestRejectedPodsAreEvicted has two GPUs with 40 % left each, and pods that ask
// for 60 %. The agent evicts the pods that a controller recreates, and no others.
func TestRejectedPodsAreEvicted(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1], rejectedFor: 1s")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	for _, name := range []string{"a", "b"} {
		if err := r.consumer(name, "60/4", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"deployed", "bare"} {
		if err := r.consumer(name, "60/4", nil); err == nil {
			t.Fatalf("%s has a GPU", name)
		}
	}
	r.api.EditPod("bare", func(p *corev1.Pod) { p.OwnerReferences = nil })
	until(t, "an eviction", func() bool {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		return len(c.Evicted) > 0
	})
	r.kubelet.Delete("default", "deployed")
	r.api.EditPod("deployed", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, "default/deployed SGPUEvicted: rejected for 1s: ") })
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, evicted := range c.Evicted {
		if evicted != "deployed "+uidOf("deployed") {
			t.Errorf("evicted %q", c.Evicted)
		}
	}
}

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
	o, begin := newOveruse(&Options{API: client}), time.Now()
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
