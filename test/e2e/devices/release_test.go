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

	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"

	account "github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// TestGPURelease: a GPU is reset, and the driver upgraded, while the daemons stay on the node, by the
// commands of docs/operate/day-2.md. What they would do to the driver the stand-in does.
func TestGPURelease(t *testing.T) {
	r, n := newDriverRig(t, "release")
	r.plugin.args = append(r.plugin.args, "--proc-root", "/proc")
	d := newReaders(t, r, n)
	d.pluginPod(t)
	running := d.replicated(t, "running", box{gpus: 2})
	train := d.replicated(t, "train", box{gpus: 1})
	first := d.waitOnly(t, running, notReady)
	d.resetGPU(t, train)
	d.untouched(t, first)
	d.upgradeDriver(t, running, train)
}

// notReady is why a pod's container does not run.
func notReady(p *corev1.Pod) string {
	if !ready(p) {
		return "it is not ready"
	}
	return ""
}

// step is a command of a procedure: how it begins, and what is so after it.
type step struct {
	begin string
	after func(out string)
}

// procedure does what docs/operate/day-2.md has an operator type under a heading, each command until it exits with 0.
// A command that the page changes is the one that is run, and one that it adds fails the test. names are the
// page's names and this cluster's, in pairs.
func (d *readers) procedure(t *testing.T, heading string, names []string, steps ...step) {
	t.Helper()
	kubectl := d.KubectlCommand(t.Context())
	path := strings.Join([]string{filepath.Dir(program(t, "heddle")), filepath.Dir(kubectl.Path), os.Getenv("PATH")}, ":")
	for i, command := range docs.Commands(t, "../../..", "docs/operate/day-2.md", heading) {
		command = strings.NewReplacer(names...).Replace(command)
		if i >= len(steps) || !strings.HasPrefix(command, steps[i].begin) {
			t.Fatalf("docs/operate/day-2.md has %q as its command %d under %q", command, i+1, heading)
		}
		var out string
		eventually(t, func() string {
			if strings.HasPrefix(command, "nvidia-smi ") {
				return "" // The stand-in for the driver does that.
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
			cmd.Env = slices.Concat(kubectl.Env, []string{"PATH=" + path})
			var code int
			if out, code = exit(t, cmd); code != 0 {
				return fmt.Sprintf("%s: exit code %d\n%s", command, code, out)
			}
			return ""
		})
		t.Logf("$ %s\n%s", command, out)
		if steps[i].after != nil {
			steps[i].after(out)
		}
	}
}

// resetGPU is the procedure "Reset a GPU". The GPU has fallen off the bus under a pod, and only a reset
// brings it back.
func (d *readers) resetGPU(t *testing.T, train controlled) {
	pod := d.waitOnly(t, train, notReady)
	gpu := d.onlyGPUOf(t, pod.Name)
	d.n.control.Failures = []nvidia.Failure{{
		Function: "DeviceGetTemperature", GPU: gpu.Index, Arg: nvidia.Any, Return: nvidia.GPUIsLost,
	}}
	d.n.set(t)
	d.waitAllocatable(t, gpuResource, 7)

	index := fmt.Sprint(gpu.Index)
	d.procedure(t, "Reset a GPU", []string{
		"gpu-1 3", d.Node() + " " + index, "gpu-1", d.Node(), "-i 3", "-i " + index,
	},
		step{"heddle drain ", func(out string) {
			if !strings.Contains(out, namespace+"/"+pod.Name+": evicted") {
				t.Errorf("no pod was evicted:\n%s", out)
			}
		}},
		step{"heddle gpu release ", func(string) {
			d.waitIdle(t)
			sessions := d.sessions(t)
			d.waitEvent(t, d.Node(), "GPUsReleased", "no new pod gets "+gpu.UUID+", running pods")
			// The other GPUs are handed out as before.
			next := d.waitOnly(t, train, notReady)
			if other := d.onlyGPUOf(t, next.Name); next.UID == pod.UID || other.UUID == gpu.UUID {
				t.Errorf("%s was drained of %s, and %s has %s", pod.Name, gpu.UUID, next.Name, other.UUID)
			}
			d.scanWithoutSession(t, sessions)
		}},
		step{"nvidia-smi --gpu-reset -i " + index, func(string) {
			d.n.control.Failures = nil
			d.n.set(t)
		}},
		step{"heddle gpu release ", nil}, step{"heddle gpu uncordon ", nil})
	d.waitEvent(t, d.Node(), "GPUReleaseEnded", "the driver is in use again with 8 GPUs")
	d.waitAllocatable(t, gpuResource, 8)
}

// onlyGPUOf is the GPU that a pod has, as the plugin reports it.
func (d *readers) onlyGPUOf(t *testing.T, pod string) account.GPU {
	t.Helper()
	reported := d.account(t)
	for i := range reported.Bindings {
		if b := &reported.Bindings[i]; b.Pod == pod && len(b.GPUs) == 1 {
			at := slices.IndexFunc(reported.GPUs, func(g account.GPU) bool { return g.UUID == b.GPUs[0] })
			return reported.GPUs[at]
		}
	}
	t.Fatalf("%s has no GPU of its own in %+v", pod, reported.Bindings)
	return account.GPU{}
}

// untouched fails the test if a pod's container is another one, or was started again.
func (d *readers) untouched(t *testing.T, before *corev1.Pod) {
	t.Helper()
	after := d.getPod(t, before.Name)
	if after == nil {
		t.Fatalf("the running pod %s is gone", before.Name)
	}
	if was, is := status(before, "app"), status(after, "app"); was.ContainerID != is.ContainerID || is.RestartCount > 0 {
		t.Errorf("the running pod was touched: %s, before %s", inShort(after), inShort(before))
	}
}

// upgradeDriver is the procedure "Upgrade the driver".
func (d *readers) upgradeDriver(t *testing.T, sets ...controlled) {
	before := d.ended()
	d.procedure(t, "Upgrade the driver", []string{"gpu-1", d.Node()},
		step{"kubectl drain ", nil},
		step{"heddle gpu release ", func(string) {
			d.waitIdle(t)
			d.waitEvent(t, d.Node(), "GPUsReleased", "no new pod gets a GPU, running pods")
			d.n.libraries(t, d.n.Root, driverAfter)
			d.n.control.Kernel = driverAfter
			d.n.set(t)
		}},
		step{"heddle gpu release ", nil}, step{"kubectl uncordon ", nil})
	d.waitPublished(t, driverAfter)
	for _, set := range sets {
		d.waitOnly(t, set, notReady)
	}
	// Each had the old library.
	eventually(t, func() string {
		want := map[string]int{}
		for name, n := range before {
			want[name] = n + 1
		}
		return cmp.Diff(want, d.ended())
	})
}
