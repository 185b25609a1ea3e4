package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/breaker"
)

// rejecting is a node with a list of withdrawn nodes, settled.
func rejecting(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, "dgx-h100", func(o *Options) {
		o.Withdrawn = types.NamespacedName{Namespace: "heddle-system", Name: "heddle-withdrawn-nodes"}
	})
	r.api.Withdrawn = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
	r.api.Nodes, r.api.TableOf = 10, "nvidia.com/gpu.product"
	r.run()
	r.list(gpus, 8, 0)
	r.passed.Add(int64(settleTime))
	return r
}

// rejected adds pods that the kubelet rejected.
func (r *rig) rejected(names ...string) {
	r.t.Helper()
	for _, name := range names {
		p := wish(name, map[string]string{gpus: "1"}, nil)
		p.Status.Phase, p.Status.Reason = corev1.PodFailed, "UnexpectedAdmissionError"
		p.Status.Message = "Allocate failed due to rpc error: code = Unknown desc = GPU is lost, which is unexpected"
		p.Status.StartTime = new(metav1.NewTime(r.now()))
		r.create(p)
	}
}

// awaitRejects waits for the condition and the taint.
func (r *rig) awaitRejects(t *testing.T, tainted bool, reason, message string) {
	t.Helper()
	until(t, "condition "+reason, func() bool {
		r.api.Mu.Lock()
		defer r.api.Mu.Unlock()
		has := slices.Contains(r.api.Node.Spec.Taints, corev1.Taint{Key: wellknown.RejectsPods, Effect: corev1.TaintEffectNoSchedule})
		return has == tainted && slices.ContainsFunc(r.api.Node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == wellknown.ConditionRejects && c.Reason == reason && strings.Contains(c.Message, message)
		})
	})
}

func (r *rig) count(notice string) (n int) {
	r.api.Mu.Lock()
	defer r.api.Mu.Unlock()
	for _, have := range r.api.notices {
		if strings.HasPrefix(have, notice+" ") {
			n++
		}
	}
	return n
}

// TestRejects withdraws a node and lets probes through: a pod runs on, a restart changes nothing, a probe that fails
// makes no Event, and one that starts brings the node back.
func TestRejects(t *testing.T) {
	r := rejecting(t)
	r.admit("runs", map[string]int{gpus: 1})
	r.start("runs")
	r.rejected("a", "b", "c")
	r.list(gpus, 0, 8)
	r.awaitRejects(t, true, "Withdrawn", "3 pods in a row did not start, the last one default/")
	r.api.Wait(t, "the Event", func() bool {
		return has(r.api.notices, wellknown.EventWithdrawn+" all devices are withdrawn, and the Node has the taint heddle.dev/rejects-pods: 3 pods")
	})
	if shortages := r.last.Load(); shortages.Inventory.Unavailable == "" {
		t.Error("the inventory does not say so")
	}
	r.rejected("late") // It was on its way.
	r.again(t)
	r.list(gpus, 0, 8)
	r.passed.Add(int64(2 * settleTime))
	r.create(wish("look", map[string]string{"cpu": "1"}, nil)) // Any change of a pod has the node look.
	r.list(gpus, 8, 0)
	r.awaitRejects(t, false, "Probing", "the next pod is a probe")
	r.create(wish("probe", map[string]string{gpus: "1"}, nil))
	r.awaitRejects(t, true, "Probing", "")
	r.list(gpus, 8, 0) // The kubelet is about to ask for them.
	r.rejected("d")
	r.list(gpus, 0, 8)
	r.awaitRejects(t, true, "Withdrawn", "default/d")
	p := wish("e", map[string]string{gpus: "1"}, nil)
	p.Status.StartTime, p.Status.Phase = new(metav1.NewTime(r.now())), corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(r.now())},
	}}}
	r.create(p)
	r.list(gpus, 8, 0)
	r.awaitRejects(t, false, "PodsStart", "")
	r.api.Wait(t, "the Event", func() bool { return has(r.api.notices, wellknown.EventReturned) })
	if n := r.count(wellknown.EventWithdrawn); n != 1 {
		t.Errorf("%d Events that the node is withdrawn", n)
	}
}

// TestRejectsInAFullFleet: a node that may not be withdrawn stays in service, and says so.
func TestRejectsInAFullFleet(t *testing.T) {
	r := rejecting(t)
	r.api.Mu.Lock()
	r.api.Withdrawn.Data = map[string]string{"other": "2999-01-01T00:00:00Z"}
	r.api.Mu.Unlock()
	r.rejected("a", "b", "c")
	r.awaitRejects(t, false, "InService", "1 of 10 nodes are withdrawn")
	r.api.Wait(t, "the Event", func() bool { return has(r.api.notices, wellknown.EventNotWithdrawn) })
	r.list(gpus, 8, 0)

	r.configure("health: {maxWithdrawnPercent: 0}")
	r.create(wish("look", map[string]string{"cpu": "1"}, nil))
	r.awaitRejects(t, false, "PodsStart", "")
}

// TestRejectsFile: an invalid file does not withdraw the node.
func TestRejectsFile(t *testing.T) {
	for _, text := range []string{"", "{", `{"phase": "withdrawn"}`, `{"phase": 3}`, `{"failed": 1, "phase": "probing"}`} {
		t.Run(text, func(t *testing.T) {
			r := newRig(t, "dgx-h100")
			if err := os.MkdirAll(r.StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(r.rejects.file(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := newRejects(&r.Agent.Options, r.state, &r.last).now.Load(); fmt.Sprint(*got) != fmt.Sprint(breaker.State{}) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
