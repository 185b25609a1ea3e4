//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/cluster/image"
)

// mpsRig is a rig whose shares MPS limits.
func mpsRig(t *testing.T) (r *rig, keeper *process, state string) {
	t.Helper()
	r = newRig(t, options{name: "mps", held: true, config: sharedGPUs + "sgpu: {enforce: {memory: mps, compute: mps}}\n"})
	keeper, state = r.mpsKeeper(t)
	r.plugin.again(t)
	r.waitShares(t, allSlots, allCores, allGiB)
	return r, keeper, state
}

// mpsKeeper runs heddle-mps, with a stand-in for nvidia-cuda-mps-control, for a plugin
// that is started afterwards.
func (r *rig) mpsKeeper(t *testing.T) (keeper *process, state string) {
	t.Helper()
	// Paths of sockets are short.
	state, err := os.MkdirTemp("", "mps") //nolint:usetesting // See above.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	root := filepath.Join(r.dir, "root")
	for _, dir := range []string{root + state, root + "/dev/shm", root + "/usr/bin", r.dir + "/shm"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", root+"/usr/bin/nvidia-cuda-mps-control", "./sharing/enforce/testdata/control")
	build.Dir, build.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build of the stand-in: %v\n%s", err, out)
	}
	if _, err := r.NodeExec(t.Context(), "mount", "--bind", state, root+state); err != nil {
		t.Fatal(err)
	}
	mps := []string{"--state-dir", state, "--mps-root", root, "--mps-shm-dir", r.dir + "/shm"}
	keeper = &process{rig: r, binary: r.plugin.binary, daemon: mpsDaemon, log: &journal{}, args: mps}
	r.plugin.extra = slices.Concat(mps, []string{"--mps-keeper=use"})
	check := func() string { // As the chart's probes do.
		out, err := exec.CommandContext(t.Context(), r.plugin.binary, mpsDaemon, "--check", "--state-dir="+state).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%v: %s", err, out)
		}
		return ""
	}
	if check() == "" {
		t.Error("the probe succeeds before the keeper runs")
	}
	if err := keeper.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, check)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of heddle-mps:\n%s", keeper.log)
		}
		if err := keeper.stop(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return keeper, state
}

// TestMPSGoesOnDuringAnUpdate: the daemon of a GPU and its clients live on while the
// plugin is replaced, take more clients after it, and end with the last. Pods that would have
// another daemon's directory get this one's.
func TestMPSGoesOnDuringAnUpdate(t *testing.T) {
	beside(t)
	r, keeper, state := mpsRig(t)
	gpu := r.gpuAt(t, 2)
	pod := func(name string, vcore, gib int) *corev1.Pod {
		p := r.pod(name, box{more: share(vcore, gib)})
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": gpu}
		return p
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(state, "mps", gpu, name))
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(text))
	}
	first := r.run(t, pod("first", 30, 4))
	if got := r.sees(t, "first", "app").Env["CUDA_MPS_PIPE_DIRECTORY"]; got != "/tmp/nvidia-mps" {
		t.Fatalf("CUDA_MPS_PIPE_DIRECTORY is %q", got)
	}
	pids := read("pids")
	gone := func() string {
		for pid := range strings.FieldsSeq(pids) {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if err == nil && !strings.Contains(string(stat), ") Z ") {
				return fmt.Sprintf("process %s of MPS is there: %s", pid, stat)
			}
		}
		return ""
	}

	r.plugin.kill(t)
	r.plugin.again(t)
	r.plugin.restart(t)
	r.run(t, pod("second", 60, 8))
	if got := read("pids"); got != pids || gone() == "" {
		t.Errorf("daemon and server were %s and are %s", pids, got)
	}
	log := strings.Split(read("log/control.log"), "\n")
	starts := slices.DeleteFunc(slices.Clone(log), func(line string) bool { return !strings.HasPrefix(line, "start ") })
	if len(starts) != 1 || !slices.Contains(log, "set_default_active_thread_percentage 60") {
		t.Errorf("the daemon's log: %q", log)
	}
	if now := r.getPod(t, "first"); now.UID != first.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod before the update: %s", inShort(now))
	}
	if reported := r.events(t, "first", "MPSFailed"); len(reported) > 0 {
		t.Errorf("Events %q", reported)
	}

	r.remove(t, "second", "first")
	eventually(t, waitStart, gone)

	// What an update of heddle-mps itself does is reported, and mended.
	r.run(t, pod("third", 30, 4))
	pids = read("pids")
	keeper.kill(t)
	r.waitEvent(t, "third", "MPSFailed", "CUDA programs that used it must be started again too", waitStart)
	eventually(t, waitStart, gone)
	if err := keeper.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, waitStart, func() string {
		if read("pids") == pids {
			return "the daemon is not started again"
		}
		return ""
	})
	r.run(t, pod("fourth", 30, 4))
	r.remove(t, "third", "fourth")
	r.mpsElsewhere(t)
}

// mpsElsewhere: pods that name another directory of MPS, or mount one over heddle's or a file
// into it. A client in the container asks the daemon; what CUDA would do takes a GPU.
func (r *rig) mpsElsewhere(t *testing.T) {
	t.Helper()
	const clients, pipe, elsewhere = "localhost/devices-mps-client:1", "CUDA_MPS_PIPE_DIRECTORY", "/tmp/elsewhere"
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.load(t, image.Spec{Name: clients, Entrypoint: []string{"/report"}, Files: map[string]string{
		"/report": filepath.Join(b.dir, "report"), "/with": compile(t, filepath.Join(t.TempDir(), "with"), with, "-static"),
		"/client": filepath.Join(r.dir, "root/usr/bin/nvidia-cuda-mps-control"),
	}})
	gpu, empty := r.gpuAt(t, 3), corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	of := func(name string, source corev1.VolumeSource, mount corev1.VolumeMount) *corev1.Pod {
		p := r.pod(name, box{more: share(30, 4), env: map[string]string{
			pipe: elsewhere, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80000M",
		}})
		p.Annotations = map[string]string{"nvidia.com/use-gpuuuid": gpu}
		p.Spec.Containers[0].Image, mount.Name = clients, "own"
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "own", VolumeSource: source})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, mount)
		return p
	}
	asks := func(pod string, command ...string) string {
		cmd := r.KubectlCommand(t.Context(), append([]string{"exec", "-i", pod, "--"}, command...)...)
		cmd.Stdin = strings.NewReader("get_default_active_thread_percentage\n")
		out, _ := cmd.Output() // A client without a daemon fails, and prints why.
		return strings.TrimSpace(string(out))
	}
	r.run(t, of("other", empty, corev1.VolumeMount{MountPath: elsewhere}))
	r.run(t, of("over", empty, corev1.VolumeMount{MountPath: "/tmp/nvidia-mps"}))
	for _, name := range []string{"other", "over"} {
		owns(t, name, r.report(t, name, "app").Env, map[string]string{
			pipe: "/tmp/nvidia-mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
		})
		if got := asks(name, "/client"); got != "30.0" {
			t.Errorf("pod %s asks for the percentage of its daemon: %q", name, got)
		}
	}
	// What a process sets for itself is not heddle's to hold: there it has no daemon.
	if got := asks("other", "/with", pipe, elsewhere, "/client"); got != "Cannot find MPS control daemon process" {
		t.Errorf("a process with a directory of its own is answered %q", got)
	}
	r.configMap(t, "pipe", map[string]string{"control": ""})
	inside := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "pipe"}}}
	r.create(t, of("inside", inside, corev1.VolumeMount{MountPath: "/tmp/nvidia-mps/control", SubPath: "control"}))
	r.waitWaiting(t, "inside", "hides /tmp/nvidia-mps", 45*time.Second)
}
