//go:build e2e && linux

package devices

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPluginDown: containers that run do not notice that the plugin is gone. One that ends
// starts again with its devices once the plugin is back, and so does a new pod.
func TestPluginDown(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	mark := r.plugin.log.mark()
	r.plugin.kill(t)
	n := r.crash(t, "big")
	r.untouched(t, map[string]life{"small": before["small"]})
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistrations(t, mark)
	r.waitRestart(t, "big", n+1)
	r.lands(t, "new")
	r.untouched(t, map[string]life{"small": before["small"]})
	r.sameDevices(t, before)
	r.consistent(t)
}

// TestNodeReboot: containerd, kubelet and plugin end, with all containers, and /run is empty
// afterwards. Pods come back with their devices, or the kubelet rejects them.
func TestNodeReboot(t *testing.T) {
	r := failing(t)
	pods := r.workload(t)
	before := r.lives(t, pods...)
	r.stopKubelet(t)
	r.plugin.kill(t)
	r.onNode(t, `for id in $(ctr tasks ls -q); do ctr tasks kill -a -s SIGKILL $id || true; done`)
	if err := r.StopContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.onNode(t, "rm -rf /run/cdi /var/lib/kubelet/device-plugins/*.sock")
	if err := r.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := r.plugin.log.mark()
	r.startKubelet(t)
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistrations(t, mark)
	back := map[string]life{}
	for _, pod := range pods {
		p := r.waitPod(t, pod, func(p *corev1.Pod) string {
			if p.Status.Phase == corev1.PodFailed || ready(p) && status(p, "app").ContainerID != before[pod].ID {
				return ""
			}
			return "it neither runs again nor failed"
		})
		if p.Status.Phase != corev1.PodFailed {
			back[pod] = before[pod]
		} else if p.Status.Reason != "UnexpectedAdmissionError" {
			t.Errorf("%s failed for another reason than the kubelet's admission: %s", pod, inShort(p))
		}
	}
	r.sameDevices(t, back)
	r.consistent(t)
	r.remove(t, pods...)
	r.lands(t, "new")
	r.consistent(t)
}
