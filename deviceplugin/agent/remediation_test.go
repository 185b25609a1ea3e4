package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/test/machines"
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
	r.awaitRemedy(t, true, "Drained", "heddle gpu release gpu-1 "+slices.Sorted(slices.Values(lost))[0])

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
	got := uses(m, all, []*corev1.Pod{high, leaves, static})
	one := func(pod string) enforce.Use {
		return enforce.Use{
			Namespace: "default", Pod: pod, UID: uidOf(pod), Container: "main", GPU: m.GPUs[1].UUID, Index: 1,
			Total: m.GPUs[1].MemoryMiB << 20, Share: 4 << 30, Used: unknown, SM: unknown,
			Enforced: enforce.Enforced{Memory: config.EnforceEvict},
		}
	}
	first, second := one("high"), one("leaves")
	second.Evictable, second.Terminating = true, true
	first.Priority, first.Evictable, first.Enforced.Compute = 1000, true, config.EnforceNone
	mirror := one("static")
	mirror.UID = "hash"
	gone := one("unknown")
	gone.Terminating = true
	if diff := cmp.Diff([]enforce.Use{first, mirror, second, gone}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
