//go:build e2e && linux

package devices

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestCheckpointLost: the kubelet forgets who has which devices. Containers
// run on, their devices are given to no other pod, and one that ends cannot
// start: its pod gets an Event.
func TestCheckpointLost(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	mark := r.plugin.log.mark()
	r.stopKubelet(t)
	if err := os.Remove(r.NodeDir("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")); err != nil {
		t.Fatal(err)
	}
	r.startKubelet(t)
	r.waitRegistrations(t, mark)
	// At once the plugin may not know yet, and then rejects the start.
	r.create(t, r.pod("hasty", box{gpus: 1, hcas: 1}))
	r.waitPod(t, "hasty", func(p *corev1.Pod) string {
		if ready(p) || strings.Contains(waitingFor(p), "the kubelet has forgotten its devices; delete that pod") {
			return ""
		}
		return "it neither runs nor gets the reason why not"
	})
	r.waitEvent(t, "big", "DevicesLost", "delete the pod")
	r.run(t, r.pod("new", box{gpus: 2, hcas: 2}))
	r.untouched(t, before)
	r.crash(t, "small")
	r.waitWaiting(t, "small", "no devices found")
	r.waitEvent(t, "small", "DevicesLost", "delete the pod")
	// Made again it has devices.
	r.remove(t, "small", "big")
	r.lands(t, "newer")
	r.waitReady(t, "hasty")
	r.consistent(t)
}
