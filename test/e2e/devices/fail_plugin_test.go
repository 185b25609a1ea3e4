//go:build e2e && linux

package devices

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// killAt kills the plugin as soon as it creates a file in a folder of its
// state, and returns a channel that is closed then.
func (r *rig) killAt(t *testing.T, folder string) <-chan struct{} {
	t.Helper()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	if err := watcher.Add(filepath.Join(r.dir, "state", folder)); err != nil {
		t.Fatal(err)
	}
	killed, process := make(chan struct{}), r.plugin.cmd.Process
	go func() {
		defer close(killed)
		for event := range watcher.Events {
			if event.Has(fsnotify.Create) {
				_ = process.Signal(unix.SIGKILL)
				return
			}
		}
	}()
	return killed
}

// killedAt has the plugin killed while it serves a call for a new pod, and
// brings it back.
func (r *rig) killedAt(t *testing.T, folder string, pod *corev1.Pod) {
	t.Helper()
	killed := r.killAt(t, folder)
	r.create(t, pod)
	select {
	case <-killed:
	case <-time.After(30 * time.Second):
		t.Fatal("the plugin was never called")
	}
	<-r.plugin.done
	r.plugin.again(t)
}

// waitDecided waits until a pod runs or has failed, and reports whether it runs. The
// only way to fail is the kubelet's: it never repeats an Allocate.
func (r *rig) waitDecided(t *testing.T, pod string) bool {
	t.Helper()
	p := r.waitPod(t, pod, func(p *corev1.Pod) string {
		if ready(p) || p.Status.Phase == corev1.PodFailed {
			return ""
		}
		return "it neither runs nor failed"
	})
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "UnexpectedAdmissionError" {
		t.Errorf("%s failed: %s", pod, inShort(p))
	}
	return p.Status.Phase != corev1.PodFailed
}

// TestPluginKilledDuringAllocate: the kubelet fails that pod for good, and the
// next one gets whole devices.
func TestPluginKilledDuringAllocate(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	failed := 0
	for i := range 3 {
		name := fmt.Sprintf("hit-%d", i)
		r.killedAt(t, "records", r.pod(name, box{gpus: 3, hcas: 3}))
		if !r.waitDecided(t, name) {
			failed++
			t.Logf("%s: %s", name, r.getPod(t, name).Status.Message)
		}
		r.untouched(t, before)
		r.consistent(t)
		r.remove(t, name)
		r.whole(t)
	}
	t.Logf("%d of 3 pods failed with UnexpectedAdmissionError", failed)
	r.run(t, r.pod("after", box{gpus: 3, hcas: 3}))
	r.has(t, "after", "app", 3, 3)
	r.untouched(t, before)
	r.consistent(t)
}

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
	r.waitRegistrations(t, mark, resources)
	r.waitRestart(t, "big", "app", n+1)
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
	r.waitRegistrations(t, mark, resources)
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
