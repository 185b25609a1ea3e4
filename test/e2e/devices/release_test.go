//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// waitIdle waits until none of the daemons has a session with the driver, or a
// device node of it open.
func (n *nodeWithDriver) waitIdle(t *testing.T, daemons ...*process) {
	t.Helper()
	eventually(t, waitStart, func() string {
		holders, err := n.Holders()
		if err != nil || len(holders) > 0 {
			return fmt.Sprintf("the driver's session is held by %v, %v", holders, err)
		}
		open, _, err := cgroup.Proc{Root: "/proc"}.Openers([]string{"/dev/nvidia", "/nvidiactl"})
		if err != nil {
			return err.Error()
		}
		for _, d := range daemons {
			if slices.ContainsFunc(open, func(o cgroup.Opener) bool { return o.PID == d.pid() }) {
				return fmt.Sprintf("%s has device nodes open: %+v", filepath.Base(d.binary), open)
			}
		}
		return ""
	})
}

// replaced ends a supervised daemon, which is then started again.
func (p *process) replaced(t *testing.T, ends func() int) {
	t.Helper()
	before := ends()
	p.signal(t, unix.SIGTERM)
	eventually(t, waitStart, func() string {
		if ends() == before {
			return "it does not end"
		}
		return ""
	})
}

// scans waits until a daemon has scanned the machine a few times more.
func (p *process) scans(t *testing.T) {
	t.Helper()
	before := len(p.log.grep("scanned"))
	eventually(t, waitStart, func() string {
		if n := len(p.log.grep("scanned")); n < before+3 {
			return fmt.Sprintf("%d scans", n-before)
		}
		return ""
	})
}

// TestGPURelease follows docs/day-2.md, by its commands:
// a GPU is reset, and the driver upgraded, while the daemons stay on the node.
func TestGPURelease(t *testing.T) {
	beside(t)
	r, n := newDriverRig(t, "release")
	r.plugin.args = append(r.plugin.args, "--proc-root", "/proc", "--log-level", "debug")
	ends := r.plugin.supervise(t)
	labeler := n.labeler(t, r)
	labeler.args = append(labeler.args, "--log-level", "debug")
	labels := labeler.supervise(t)
	r.waitRegistered(t)
	r.waitAllocatable(t, gpuResource, 8, waitStart)
	r.waitDriverLabel(t, driverBefore)
	running := r.run(t, r.pod("running", box{gpus: 2}))

	// A GPU has fallen off the bus, and only a reset brings it back.
	n.control.Failures = []nvidia.Failure{{
		Function: "DeviceGetTemperature", GPU: 3, Arg: nvidia.Any, Return: nvidia.GPUIsLost,
	}}
	n.set(t)
	r.waitAllocatable(t, gpuResource, 7, waitStart)

	node := filepath.Join(t.TempDir(), "dev", "nvidia9")
	if err := os.MkdirAll(filepath.Dir(node), 0o755); err != nil {
		t.Fatal(err)
	}
	open, err := os.Create(node)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	out, code := r.heddleExit(t, "gpu", "release", "--node", r.Node(), "--for", "20m")
	for _, want := range []string{"No new pod gets a GPU", "default/running", "devices.test", node} {
		if !strings.Contains(out, want) || code != 1 {
			t.Errorf("exit code %d, %q is not in\n%s", code, want, out)
		}
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	n.waitIdle(t, r.plugin, labeler)
	sessions, err := n.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, gpuResource, 0, waitStart)
	if q := r.node(t).Status.Capacity[gpuResource]; q.Value() != 8 {
		t.Errorf("capacity is %d: device IDs were withdrawn", q.Value())
	}
	r.waitEvent(t, r.Node(), "GPUsReleased", "the driver of the GPUs is released until", waitStart)
	pinned := r.pod("pinned", box{gpus: 1})
	pinned.Spec.NodeName = r.Node()
	waiting := r.pod("waiting", box{gpus: 1})
	r.create(t, pinned, waiting)
	r.waitPod(t, "pinned", waitStart, func(p *corev1.Pod) string {
		if p.Status.Reason != "UnexpectedAdmissionError" && p.Status.Reason != "OutOfnvidia.com/gpu" {
			return inShort(p)
		}
		return ""
	})

	// Daemons that start under the release open no session either, and know what
	// those before them knew.
	r.plugin.replaced(t, ends)
	labeler.replaced(t, labels)
	r.waitRegistered(t)
	r.plugin.scans(t)
	labeler.scans(t)
	if again, err := n.Sessions(); err != nil || again != sessions {
		t.Errorf("%d sessions were begun under the release, %v", again-sessions, err)
	}
	n.waitIdle(t, r.plugin, labeler)
	if got := r.node(t).Labels["nvidia.com/gpu.count"]; got != "8" {
		t.Errorf("the label nvidia.com/gpu.count is %q under the release", got)
	}
	if q := r.node(t).Status.Capacity[gpuResource]; q.Value() != 8 {
		t.Errorf("capacity is %d after a restart under the release", q.Value())
	}

	n.control.Failures = nil // nvidia-smi --gpu-reset -i 3
	n.set(t)
	r.heddle(t, "gpu", "release", "--node", r.Node(), "--undo")
	r.waitEvent(t, r.Node(), "GPUReleaseEnded", "the driver is in use again with 8 GPUs", waitStart)
	r.waitAllocatable(t, gpuResource, 8, waitStart)
	r.waitReady(t, "waiting", waitStart)
	r.upgradeUnderRelease(t, n, ends)

	after := r.getPod(t, "running")
	if was, is := status(running, "app"), status(after, "app"); was.ContainerID != is.ContainerID || is.RestartCount > 0 {
		t.Errorf("the running pod was touched: %s, before %s", inShort(after), inShort(running))
	}
}

// upgradeUnderRelease is the procedure of an upgrade but for the drain: the pods
// stay, to show that they are not touched.
func (r *rig) upgradeUnderRelease(t *testing.T, n *nodeWithDriver, ends func() int) {
	t.Helper()
	r.heddleExit(t, "gpu", "release", "--node", r.Node(), "--for", "20m")
	n.waitIdle(t)
	before := ends()
	n.libraries(t, n.Root, driverAfter)
	n.control.Kernel = driverAfter
	n.set(t)
	r.heddle(t, "gpu", "release", "--node", r.Node(), "--undo")
	r.waitAllocatable(t, gpuResource, 8, waitStart)
	r.waitDriverLabel(t, driverAfter)
	if n := ends() - before; n != 1 {
		t.Errorf("the plugin ended %d times, want once: it had the old library", n)
	}
	r.run(t, r.pod("new", box{gpus: 4}))
}
