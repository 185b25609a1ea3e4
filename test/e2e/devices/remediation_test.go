//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// waitRemedy waits until the Node has the taint or not, and the condition this reason.
func (r *rig) waitRemedy(t *testing.T, tainted bool, reason string) {
	t.Helper()
	eventually(t, waitStart, func() string {
		n := r.node(t)
		is := slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == wellknown.UnhealthyGPU && taint.Effect == corev1.TaintEffectNoSchedule
		})
		at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == wellknown.ConditionRemediation })
		if is != tainted || at < 0 || n.Status.Conditions[at].Reason != reason {
			return fmt.Sprintf("tainted %t, want %t with reason %s: %+v", is, tainted, reason, n.Status.Conditions)
		}
		return ""
	})
}

// TestGPURemediation has a GPU fail under a pod of a ReplicaSet: the node is cordoned, the
// pod evicted, and its successor waits until the GPU was reset.
func TestGPURemediation(t *testing.T) {
	beside(t)
	r := newRig(t, options{name: "remedy", config: "health: {upAfter: 1s, remediation: {policy: drain, after: 2s}}\n"})
	other := r.run(t, r.pod("other", box{gpus: 1}))
	set := r.replicated(t, "train", box{gpus: 1})
	ready := func(p *corev1.Pod) string {
		if s := status(p, "app"); !s.Ready {
			return "not ready"
		}
		return ""
	}
	first := r.waitOnly(t, set, ready)
	has := r.has(t, first.Name, "app", 1, 0)
	whole := r.machine(t)
	t.Cleanup(func() { _ = r.writeMachine(whole) })
	lost := r.machine(t)
	for i := range lost.GPUs {
		if lost.GPUs[i].UUID == has.GPUs[0] {
			lost.GPUs[i].Health = machine.Health{State: machine.Lost, Reason: "memory: GPU is lost"}
		}
	}
	if err := r.writeMachine(lost); err != nil {
		t.Fatal(err)
	}
	r.waitEvent(t, r.Node(), wellknown.EventRemediationStarted, wellknown.UnhealthyGPU, waitStart)
	r.waitEvent(t, first.Name, wellknown.EventUnhealthyGPUEvicted, "GPU is lost", waitStart)
	r.waitRemedy(t, true, "Drained")
	second := r.waitOnly(t, set, func(p *corev1.Pod) string {
		if p.UID == first.UID || p.Spec.NodeName != "" {
			return "it is not the one that waits"
		}
		return ""
	})
	if err := r.writeMachine(whole); err != nil {
		t.Fatal(err)
	}
	r.waitRemedy(t, false, "NotNeeded")
	r.waitEvent(t, r.Node(), wellknown.EventRemediationEnded, wellknown.UnhealthyGPU, waitStart)
	if third := r.waitOnly(t, set, ready); third.UID != second.UID {
		t.Errorf("%s runs, want %s", third.Name, second.Name)
	}
	after := r.getPod(t, "other")
	if a, b := status(other, "app"), status(after, "app"); a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("the pod on another GPU was touched: %+v", b)
	}
}
