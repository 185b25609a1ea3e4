//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
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
func (r *rig) waitDecided(t *testing.T, pod string, within time.Duration) bool {
	t.Helper()
	p := r.waitPod(t, pod, within, func(p *corev1.Pod) string {
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
		if !r.waitDecided(t, name, 60*time.Second) {
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

// TestPluginKilledDuringPreStart: the kubelet asks again, and the pod starts.
func TestPluginKilledDuringPreStart(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	for i := range 2 {
		name := fmt.Sprintf("hit-%d", i)
		begin := time.Now()
		r.killedAt(t, "devices", r.pod(name, box{gpus: 3, hcas: 3}))
		r.waitReady(t, name, 60*time.Second)
		t.Logf("%s ready after %.1f s", name, time.Since(begin).Seconds())
		r.has(t, name, "app", 3, 3)
		r.untouched(t, before)
		r.consistent(t)
		r.remove(t, name)
	}
}

// TestPluginKilledInALoop: a burst of pods while the plugin dies again and
// again at any place.
func TestPluginKilledInALoop(t *testing.T) {
	r := failing(t)
	const rounds, burst = 2, 8
	failed, kills := 0, 0
	for round := range rounds {
		pods := make([]*corev1.Pod, burst)
		for i := range pods {
			pods[i] = r.pod(fmt.Sprintf("burst-%d-%d", round, i), box{gpus: 1, hcas: 1})
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				// Short and long lives: some are over before they register.
				case <-time.After(time.Duration(100+i*170%900) * time.Millisecond):
				}
				_ = r.plugin.cmd.Process.Kill()
				<-r.plugin.done
				kills++
				if err := r.plugin.start(r.ctx(t)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		r.create(t, pods...)
		pause(t, 5*time.Second)
		close(stop)
		<-done
		r.waitRegistered(t)
		begin := time.Now()
		for _, p := range pods {
			if !r.waitDecided(t, p.Name, 60*time.Second) {
				failed++
			}
		}
		t.Logf("all decided %.1f s after the last kill", time.Since(begin).Seconds())
		r.consistent(t)
		r.remove(t, names(pods)...)
	}
	t.Logf("%d kills; %d of %d pods failed with UnexpectedAdmissionError", kills, failed, rounds*burst)
}

// TestPluginRestartKeepsBindings: nothing of running pods changes, on disk or
// in the containers, and one that starts again has what it had.
func TestPluginRestartKeepsBindings(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	files := r.files(t)
	r.plugin.restart(t)
	r.plugin.kill(t)
	r.plugin.again(t)
	r.untouched(t, before)
	if diff := cmp.Diff(files, r.files(t)); diff != "" {
		t.Errorf("files of running pods changed (-before +after):\n%s", diff)
	}
	n := r.crash(t, "big")
	r.waitRestart(t, "big", "app", n+1, 30*time.Second)
	r.sameDevices(t, before)
	r.lands(t, "new")
	r.consistent(t)
}

// files are inode and content of records and specs of pods that live.
func (r *rig) files(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for uid, containers := range r.checkpointNames(t) {
		for _, names := range containers {
			for _, name := range names {
				kind, device, _ := strings.Cut(strings.TrimPrefix(name, "heddle.dev/"), "=")
				for _, path := range []string{
					filepath.Join(r.dir, "state", "records", device+".json"),
					filepath.Join(r.NodeDir("/var/run/cdi"), "heddle-"+kind+"-"+device+".json"),
				} {
					info, err := os.Stat(path)
					if os.IsNotExist(err) {
						continue // Of a pod that has gone: the kubelet forgets late.
					}
					if err != nil {
						t.Fatal(err)
					}
					b, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					all[uid+" "+filepath.Base(path)] = fmt.Sprintf("%s %s", info.ModTime(), b)
				}
			}
		}
	}
	return all
}

// outage ends the plugin for a time, during which containers end and a pod is
// created. Containers that run do not notice. What asked last starts within
// 20 s of the plugin's return; what ended first when the kubelet's crash loop
// back-off allows, which by then is as long as the outage.
func (r *rig) outage(t *testing.T, d time.Duration) {
	t.Helper()
	r.create(t, r.pod("late", box{gpus: 1, hcas: 1}))
	before := r.lives(t, append(r.workload(t), r.waitReady(t, "late", 60*time.Second).Name)...)
	mark := r.plugin.log.mark()
	r.plugin.kill(t)
	begin := time.Now()
	starts := map[string]int32{"big": r.crash(t, "big") + 1}
	// The node still offers all devices, so a pod that comes now is rejected.
	r.create(t, r.pod("hasty", box{gpus: 1, hcas: 1}))
	const close = 5 * time.Second
	if left := d - close - time.Since(begin); left > 0 {
		pause(t, left)
		t.Logf("it waits: %s", r.rejection(t, "big", close))
		starts["late"] = r.crash(t, "late") + 1
		r.create(t, r.pod("new", box{gpus: 1, hcas: 1}))
	}
	if left := d - time.Since(begin); left > 0 {
		pause(t, left)
	}
	r.untouched(t, map[string]life{"small": before["small"]})
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	t.Logf("down %.1f s, registered after another %.2f s", back.Sub(begin).Seconds(),
		r.waitRegistrations(t, mark, resources, 10*time.Second).Seconds())
	for _, pod := range []string{"late", "big"} {
		if _, ended := starts[pod]; ended {
			r.startsAgain(t, pod, starts[pod], back, min(d, 5*time.Minute))
		}
	}
	if r.getPod(t, "new") != nil {
		r.waitReady(t, "new", 30*time.Second)
	}
	t.Logf("a pod created as the plugin ended: runs %t; %s", r.waitDecided(t, "hasty", 15*time.Second), inShort(r.getPod(t, "hasty")))
	r.untouched(t, map[string]life{"small": before["small"]})
	r.sameDevices(t, before)
	r.consistent(t)
}

// startsAgain waits for a container: 20 s, or where the kubelet reports that it is
// in a crash loop, which it also is when it could not start, a back-off more. The
// pod's status may never show that: it keeps what the last start failed with. The
// kubelet tries a start that failed again after 10 to 15 s (backOffPeriod and its jitter,
// pkg/kubelet); the rest is for the start.
func (r *rig) startsAgain(t *testing.T, pod string, restarts int32, back time.Time, backoff time.Duration) {
	t.Helper()
	const limit = 20 * time.Second
	crashing := ""
	r.waitPod(t, pod, limit+max(backoff, 10*time.Second), func(p *corev1.Pod) string {
		if s := status(p, "app"); s.RestartCount >= restarts && s.State.Running != nil {
			return ""
		}
		if text := waiting(p); strings.Contains(text, "back-off") {
			crashing = text
		}
		return "it does not run again"
	})
	late := time.Since(back)
	for _, stated := range r.events(t, pod, "BackOff") {
		if strings.Contains(stated, string(r.getPod(t, pod).UID)) {
			crashing = stated
		}
	}
	t.Logf("%s ran again %.1f s after the plugin came back; %s", pod, late.Seconds(), crashing)
	if late > limit && crashing == "" {
		t.Errorf("%s waited %.1f s for its start with the plugin there", pod, late.Seconds())
	}
}

// rejection is what the kubelet reports of a container that does not start; it must
// name the reason.
func (r *rig) rejection(t *testing.T, pod string, within time.Duration) (reported string) {
	t.Helper()
	r.waitPod(t, pod, within, func(p *corev1.Pod) string {
		for _, text := range []string{"has been stopped", "endpoint not found", "rpc failed", "back-off"} {
			if reported = waiting(p); strings.Contains(reported, text) {
				return ""
			}
		}
		return "no reason is given"
	})
	return reported
}

// TestPluginDown1s is a plugin that crashes and is started again.
func TestPluginDown1s(t *testing.T) { failing(t).outage(t, time.Second) }

// TestPluginDown60s is a plugin whose image has to be fetched.
func TestPluginDown60s(t *testing.T) {
	failing(t).outage(t, time.Minute)
}

// TestPluginDown600s is a plugin that an operator has to repair. The kubelet
// forgets the resource after 5 minutes.
func TestPluginDown600s(t *testing.T) {
	if os.Getenv("HEDDLE_LONG_TESTS") == "" {
		t.Skip("takes over ten minutes; set HEDDLE_LONG_TESTS to run it")
	}
	failing(t).outage(t, 10*time.Minute)
}

// TestRollingUpgrade: the old plugin ends gracefully, the new one starts.
func TestRollingUpgrade(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	var worst time.Duration
	best := time.Hour
	failed := 0
	for i := range 3 {
		name := fmt.Sprintf("during-%d", i)
		mark := r.plugin.log.mark()
		begin := time.Now()
		if err := r.plugin.stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := time.Since(begin)
		r.create(t, r.pod(name, box{gpus: 1, hcas: 1}))
		if err := r.plugin.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for registrations(r.plugin.log.since(mark)) < resources && time.Since(begin) < 20*time.Second {
			pause(t, time.Millisecond)
		}
		gap := time.Since(begin)
		worst, best = max(worst, gap), min(best, gap)
		t.Logf("gap %d ms, of which the old one's end %d ms", gap.Milliseconds(), ended.Milliseconds())
		if !r.waitDecided(t, name, 60*time.Second) {
			failed++
			t.Logf("%s: %s", name, r.getPod(t, name).Status.Message)
		}
	}
	t.Logf("worst gap %d ms; %d of 3 pods created in it failed with UnexpectedAdmissionError", worst.Milliseconds(), failed)
	// What the machine does meanwhile is in the worst, and not in the best.
	if best > 2*time.Second {
		t.Errorf("the shortest gap is %s", best)
	}
	r.untouched(t, before)
	r.consistent(t)
}
