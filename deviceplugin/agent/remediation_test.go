package agent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
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
	r.configure("health: {upAfter: 0s, remediation: {policy: drain, after: 1s}}")
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
