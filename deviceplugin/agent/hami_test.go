package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// The binder asks HAMi's annotation only where HAMi is on, and is told that
// nobody chose where HAMi did not.
func TestHAMiAsTheBinderKnowsIt(t *testing.T) {
	chosen := func(do func(*corev1.Pod)) *corev1.Pod {
		p := wish("p1", map[string]string{slots: "1"}, nil)
		p.Spec.SchedulerName = "hami-scheduler"
		p.Spec.NodeName = node
		p.Annotations = map[string]string{
			wellknown.HAMiAllocation: `[[{"uuid":"GPU-1","compute":60,"vRam":4096}]]`, wellknown.HAMiNode: node,
			wellknown.HAMiPredicateTime: "1795223838726454907", wellknown.HAMiBindTime: "1795223839",
		}
		do(p)
		return p
	}
	for _, tt := range []struct {
		name   string
		off    bool
		pod    *corev1.Pod
		shares []allocation.Share
		by     string
		err    string
	}{
		{
			name: "chosen", pod: chosen(func(*corev1.Pod) {}), by: allocation.ByHAMi,
			shares: []allocation.Share{{UUID: "GPU-1", VCore: 60, MemoryMiB: 4096}},
		},
		{name: "HAMi is off", off: true, pod: chosen(func(*corev1.Pod) {})},
		{name: "not chosen", pod: chosen(func(p *corev1.Pod) { delete(p.Annotations, wellknown.HAMiAllocation) })},
		{
			name: "forged", pod: chosen(func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }), by: allocation.ByHAMi,
			err: `metax-tech.com/gpu-devices-allocated is not believed: the pod's scheduler is "default-scheduler", and HAMi is "hami-scheduler"`,
		},
		{
			name: "a card that left", pod: chosen(func(p *corev1.Pod) {
				p.Annotations[wellknown.HAMiAllocation] = `[[{"uuid":"GPU-2","compute":60,"vRam":4096}]]`
			}), by: allocation.ByHAMi, err: "metax-tech.com/gpu-devices-allocated: this node has no shared card GPU-2",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			c.SGPU.HAMi.Enabled = !tt.off
			m := &machine.Machine{GPUs: []machine.GPU{{UUID: "GPU-1", MemoryMiB: 81920}}}
			h := hamiScheduler{&Agent{Options: Options{NodeName: node}}}
			h.agent.now.Store(inventory.Configured(m, &c))
			shares, by, err := h.Scheduled(tt.pod, "main", &quota.Request{GPUs: 1, VCore: 60, MemoryMiB: 4096})
			if diff := cmp.Diff(tt.shares, shares); diff != "" || by != tt.by || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("by %q, %v (-want +got):\n%s", by, err, diff)
			}
		})
	}
}
