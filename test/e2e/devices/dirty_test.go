//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// A GPU that is not clean is unhealthy at once, or never.
const (
	dirtyAtOnce = "health: {downAfter: 1s, upAfter: 1s, dirtyAfter: 0s}\n"
	dirtyNever  = "health: {downAfter: 1s, upAfter: 1s, dirtyAfter: 24h}\n"
)

// leftover is a process of a pod that has ended, which has a GPU's device node open.
type leftover struct {
	*exec.Cmd
	node *nodeWithDriver
}

// leave starts a process in the cgroup of a pod that has ended, with memory of a GPU. Linux has no other way to
// survive a pod than a fault of the driver, which keeps a killed process.
func (n *nodeWithDriver) leave(t *testing.T, uid string, gpu int) *leftover {
	t.Helper()
	node, err := os.OpenFile(filepath.Join(n.Root, "dev", fmt.Sprint("nvidia", n.control.GPUs[gpu].Minor)), unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	l := &leftover{Cmd: exec.CommandContext(t.Context(), "sleep", "infinity"), node: n}
	l.ExtraFiles = []*os.File{node}
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "unified") // Beside cgroup v1.
	}
	top := filepath.Join(root, "heddle-dirty-"+filepath.Base(filepath.Dir(n.tree.Root)))
	group := filepath.Join(top, "pod"+uid, strings.Repeat("0d", 32))
	err = errors.Join(os.MkdirAll(group, 0o755),
		os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, l.Process.Pid), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.end()
		for _, dir := range []string{group, filepath.Dir(group), top} {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	n.control.Processes = []nvidia.Process{{GPU: gpu, PID: l.Process.Pid, Bytes: 2 << 30}}
	n.set(t)
	return l
}

// end ends the process.
func (l *leftover) end() {
	_ = l.Process.Kill()
	_ = l.Wait()
}

// TestDirtyGPU: on a real kubelet, the container of the next pod waits for a GPU with a process of a pod that has
// ended, and its status names the process. It starts when the process has ended. If the GPU is dirty for long, it is
// unhealthy, and the pod made again gets another.
func TestDirtyGPU(t *testing.T) {
	r, n := newDriverRig(t, "dirty")
	r.plugin.args = append(r.plugin.args, "--proc-root", "/proc")
	r.configure(t, dirtyNever)
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, gpuResource, 8)
	first := r.run(t, r.pod("first", box{gpus: 1}))
	gpus, _ := given(t, r.report(t, "first", "app"))
	at := slices.IndexFunc(n.control.GPUs, func(g nvidia.GPU) bool { return g.UUID == gpus[0] })
	r.remove(t, "first")
	former := n.leave(t, string(first.UID), at)

	reason := fmt.Sprintf("GPU %s still has process %d (sleep) of pod %s with 2048 MiB on it, since ", gpus[0], former.Process.Pid, first.UID)
	waits := func(p *corev1.Pod) string {
		if w := status(p, "app").State.Waiting; w == nil || !strings.Contains(w.Message, reason) {
			return "it does not wait for the process"
		}
		return ""
	}
	r.create(t, r.pod("next", box{gpus: 1}))
	t.Log(status(r.waitPod(t, "next", waits), "app").State.Waiting)
	r.waitEvent(t, "next", "GPUDirty", reason)
	if got, want := r.metrics(t, "heddle_gpu_dirty"), fmt.Sprintf("heddle_gpu_dirty{gpu=%q} 1", gpus[0]); !slices.Contains(got, want) {
		t.Errorf("metrics have %q, want %q", got, want)
	}
	former.end()
	n.control.Processes = nil
	n.set(t)
	r.waitReady(t, "next")
	if now, _ := given(t, r.report(t, "next", "app")); !slices.Equal(now, gpus) {
		t.Errorf("next has %v, want %v", now, gpus)
	}
	// Its own processes do not keep its container from starting again.
	n.control.Processes = []nvidia.Process{{GPU: at, PID: r.processOf(t, "next"), Bytes: 4 << 30}, {GPU: at, Bytes: 1 << 30}}
	n.set(t)
	r.waitRestart(t, "next", r.crash(t, "next")+1)
	r.remove(t, "next")

	// Memory that no process has.
	n.control.Processes = []nvidia.Process{{GPU: at, Bytes: 45 << 30}}
	n.set(t)
	r.configure(t, dirtyAtOnce)
	reason = fmt.Sprintf("GPU %s still has 46084 MiB of no visible process on it, since ", gpus[0])
	r.create(t, r.pod("again", box{gpus: 1}))
	r.waitPod(t, "again", waits)
	r.waitAllocatable(t, gpuResource, 7)
	r.waitEvent(t, r.Node(), "DeviceUnhealthy", reason)
	r.remove(t, "again")
	r.run(t, r.pod("again", box{gpus: 1}))
	if now, _ := given(t, r.report(t, "again", "app")); slices.Equal(now, gpus) {
		t.Errorf("the pod that was made again has the dirty GPU %v", now)
	}
	n.control.Processes = nil
	n.set(t)
	r.waitAllocatable(t, gpuResource, 8)
}

// TestDirtyClaim: so does the pod of a claim wait, and the claim made again gets another GPU.
func TestDirtyClaim(t *testing.T) {
	r, n := newDriverRig(t, "dirty-claim")
	r.configure(t, dirtyNever+"mode: claims\n")
	if err := r.Apply(t.Context(), claimClasses()); err != nil {
		t.Fatal(err)
	}
	r.plugin.args = append(r.plugin.args, "--proc-root", "/proc", "--claims-dir", "/var/lib/kubelet/plugins/"+claims.Driver)
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 8)
	start := func(name string) {
		r.claim(t, name, exactly("gpu", "gpu.heddle.dev", 1))
		r.create(t, r.claimant(name, name))
	}
	end := func(name string) {
		r.remove(t, name)
		r.kubectl(t, "delete", "resourceclaim", name)
	}
	start("first")
	first := r.waitReady(t, "first")
	gpus, _ := given(t, r.report(t, "first", "app"))
	at := slices.IndexFunc(n.control.GPUs, func(g nvidia.GPU) bool { return g.UUID == gpus[0] })
	end("first")
	former := n.leave(t, string(first.UID), at)
	reason := fmt.Sprintf("GPU %s still has process %d (sleep) of pod %s with 2048 MiB on it, since ", gpus[0], former.Process.Pid, first.UID)
	start("next")
	r.waitEvent(t, "next", "FailedPrepareDynamicResources", reason)
	r.waitEvent(t, "next", "GPUDirty", reason)
	former.end()
	n.control.Processes = nil
	n.set(t)
	r.waitReady(t, "next")
	if now, _ := given(t, r.report(t, "next", "app")); !slices.Equal(now, gpus) {
		t.Errorf("next has %v, want %v", now, gpus)
	}
	end("next")

	n.control.Processes = []nvidia.Process{{GPU: at, Bytes: 45 << 30}}
	n.set(t)
	r.configure(t, dirtyAtOnce+"mode: claims\n")
	start("again")
	r.waitEvent(t, "again", "GPUDirty", fmt.Sprintf("GPU %s still has 46084 MiB of no visible process on it, since ", gpus[0]))
	r.waitClaimable(t, 7)
	end("again")
	start("again")
	r.waitReady(t, "again")
	if now, _ := given(t, r.report(t, "again", "app")); slices.Equal(now, gpus) {
		t.Errorf("the pod that was made again has the dirty GPU %v", now)
	}
}
