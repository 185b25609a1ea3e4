//go:build e2e && linux

package devices

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// resources is how many the plugin registers on a DGX H100.
const resources = 2

// TestKubeletRestart: the pods go on, the plugin registers once more and
// no pod has other devices.
func TestKubeletRestart(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	mark := r.plugin.log.mark()
	r.stopKubelet(t)
	r.startKubelet(t)
	t.Logf("registered %s after the kubelet answered", r.waitRegistrations(t, mark, resources, 10*time.Second))
	r.lands(t, "new")
	r.untouched(t, before)
	n := r.crash(t, "big")
	r.waitRestart(t, "big", "app", n+1, 30*time.Second)
	r.sameDevices(t, before)
	if got := registrations(r.plugin.log.since(mark)); got != resources {
		t.Errorf("%d registrations for one restart, want %d", got, resources)
	}
	r.consistent(t)
}

// TestKubeletStopped7s: one registration each, however long it takes.
func TestKubeletStopped7s(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	mark := r.plugin.log.mark()
	r.stopKubelet(t)
	pause(t, 7*time.Second)
	r.startKubelet(t)
	r.waitRegistrations(t, mark, resources, 10*time.Second)
	r.lands(t, "new")
	r.untouched(t, before)
	if got := registrations(r.plugin.log.since(mark)); got != resources {
		t.Errorf("%d registrations for one restart, want %d", got, resources)
	}
	r.consistent(t)
}

// TestKubeletDirectoryWiped: first all sockets are deleted under the
// running kubelet, then the whole directory goes while it is down.
func TestKubeletDirectoryWiped(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	for _, socket := range r.sockets(t) {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
	// Connections outlive their sockets.
	r.lands(t, "meanwhile")
	mark := r.plugin.log.mark()
	r.stopKubelet(t)
	r.startKubelet(t)
	r.waitRegistrations(t, mark, resources, 10*time.Second)
	r.run(t, r.pod("new", box{gpus: 1, hcas: 1}))
	r.untouched(t, before)
	r.consistent(t)
	r.remove(t, "big", "small", "meanwhile", "new")

	mark = r.plugin.log.mark()
	r.stopKubelet(t)
	if err := os.RemoveAll(r.NodeDir("/var/lib/kubelet/device-plugins")); err != nil {
		t.Fatal(err)
	}
	pause(t, time.Second)
	r.startKubelet(t)
	r.waitRegistrations(t, mark, resources, 10*time.Second)
	r.lands(t, "newer")
	if got := registrations(r.plugin.log.since(mark)); got != resources {
		t.Errorf("%d registrations after the directory went, want %d", got, resources)
	}
	r.consistent(t)
}

// TestKubeletRestartPluginHeldBack: until the plugin is back the kubelet skips
// PreStartContainer, and a container that ends meanwhile starts again from the
// CDI spec on disk.
func TestKubeletRestartPluginHeldBack(t *testing.T) { //nolint:tparallel // They do, in failing.
	beside(t)
	for name, how := range map[string]struct{ hold, release func(*testing.T, *rig) }{
		"frozen": {
			func(t *testing.T, r *rig) {
				r.plugin.signal(t, unix.SIGSTOP)
				t.Cleanup(func() { _ = unix.Kill(r.plugin.cmd.Process.Pid, unix.SIGCONT) })
			},
			func(t *testing.T, r *rig) { r.plugin.signal(t, unix.SIGCONT) },
		},
		"stopped": {
			func(t *testing.T, r *rig) {
				if err := r.plugin.stop(t.Context()); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, r *rig) { r.plugin.again(t) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := failing(t)
			before := r.lives(t, r.workload(t)...)
			mark := r.plugin.log.mark()
			how.hold(t, r)
			r.stopKubelet(t)
			r.startKubelet(t)
			r.admitted(t)
			begin := time.Now()
			n := r.crash(t, "big")
			r.waitRestart(t, "big", "app", n+1, 30*time.Second)
			t.Logf("started again without the plugin %.1f s after it was killed", time.Since(begin).Seconds())
			r.sameDevices(t, before)
			how.release(t, r)
			r.waitRegistrations(t, mark, resources, 20*time.Second)
			r.untouched(t, map[string]life{"small": before["small"]})
			r.lands(t, "new")
			r.sameDevices(t, before)
			r.consistent(t)
		})
	}
}

// admitted waits until a kubelet that has just started has taken all its pods
// up: it does so in the order of their creation. A container that ends before
// that has its devices allocated again, and without a plugin its pod fails.
func (r *rig) admitted(t *testing.T) {
	t.Helper()
	r.run(t, r.pod("canary", box{}))
	r.remove(t, "canary")
}

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
	r.waitRegistrations(t, mark, resources, 10*time.Second)
	// At once the plugin may not know yet, and then refuses the start.
	r.create(t, r.pod("hasty", box{gpus: 1, hcas: 1}))
	r.waitPod(t, "hasty", 30*time.Second, func(p *corev1.Pod) string {
		if ready(p) || strings.Contains(waiting(p), "the kubelet has forgotten its devices; delete that pod") {
			return ""
		}
		return "it neither runs nor gets the reason why not"
	})
	r.waitEvent(t, "big", "DevicesLost", "delete the pod", 30*time.Second)
	r.run(t, r.pod("new", box{gpus: 2, hcas: 2}))
	r.untouched(t, before)
	r.exclusive(t, "big", "small", "hasty", "new")
	r.crash(t, "small")
	begin := time.Now()
	r.waitWaiting(t, "small", "no devices found", 30*time.Second)
	r.waitEvent(t, "small", "DevicesLost", "delete the pod", 45*time.Second)
	t.Logf("Event DevicesLost %.1f s after the container ended", time.Since(begin).Seconds())
	// Made again it has devices.
	r.remove(t, "small", "big")
	r.lands(t, "newer")
	r.waitReady(t, "hasty", 30*time.Second)
	r.consistent(t)
}

// exclusive fails the test if two of the pods that run can open one GPU.
func (r *rig) exclusive(t *testing.T, pods ...string) {
	t.Helper()
	owner := map[string]string{}
	for _, name := range pods {
		if !ready(r.getPod(t, name)) {
			t.Logf("%s waits: %s", name, waiting(r.getPod(t, name)))
			continue
		}
		for _, uuid := range r.lives(t, name)[name].GPUs {
			if owner[uuid] != "" {
				t.Errorf("%s and %s both have GPU %s", owner[uuid], name, uuid)
			}
			owner[uuid] = name
		}
	}
}

// TestNodeReboot: containerd, kubelet and plugin end, with all containers, and
// /run is empty afterwards.
func TestNodeReboot(t *testing.T) { //nolint:tparallel // They do, in failing.
	beside(t)
	for name, late := range map[string]time.Duration{"plugin first": 0, "plugin late": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
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
			if late == 0 {
				if err := r.plugin.start(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.waitLog(t, mark, "started", 5*time.Second)
			}
			r.startKubelet(t)
			if late > 0 {
				pause(t, late)
				if err := r.plugin.start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r.waitRegistrations(t, mark, resources, 20*time.Second)
			back := map[string]life{}
			for _, pod := range pods {
				p := r.waitPod(t, pod, 60*time.Second, func(p *corev1.Pod) string {
					if p.Status.Phase == corev1.PodFailed || ready(p) && status(p, "app").ContainerID != before[pod].ID {
						return ""
					}
					return "it neither runs again nor failed"
				})
				if p.Status.Phase != corev1.PodFailed {
					back[pod] = before[pod]
					continue
				}
				t.Logf("%s failed: %s: %s", pod, p.Status.Reason, p.Status.Message)
				if p.Status.Reason != "UnexpectedAdmissionError" {
					t.Errorf("%s failed for another reason than the kubelet's admission: %s", pod, inShort(p))
				}
			}
			t.Logf("%d of %d pods came back", len(back), len(pods))
			r.sameDevices(t, back)
			r.consistent(t)
			r.remove(t, pods...)
			r.lands(t, "new")
			r.consistent(t)
		})
	}
}
