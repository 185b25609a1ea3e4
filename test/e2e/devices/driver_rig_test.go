//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/nvidia"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// The driver before and after an upgrade.
const driverBefore, driverAfter = "535.161.08", "550.54.15"

// node is a machine with a driver: a tree of /sys, /dev and /proc, and a driver
// root whose libraries real go-nvml and nvcdi load. Its GPUs are the DGX's.
type nodeWithDriver struct {
	*nvidia.Driver
	tree    *sysfstest.Tree
	control nvidia.Control
}

// installDriver makes the machine under a rig's directory.
func installDriver(t *testing.T, dir string) *nodeWithDriver {
	t.Helper()
	n := &nodeWithDriver{tree: sysfstest.At(t, filepath.Join(dir, "host"))}
	sysfstest.DGXH100(n.tree)
	n.control = nvidia.Of(machines.Load(t, "dgx-h100"))
	for i := range n.control.GPUs {
		n.control.GPUs[i].PCI = sysfstest.GPUAddress(i)
	}
	n.control.Kernel = driverBefore
	n.libraries(t, filepath.Join(dir, "driver"), driverBefore)
	n.set(t)
	majors, err := freeMajors(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.MakeNodes(n.control, majors[0]); err != nil {
		t.Fatal(err)
	}
	return n
}

// libraries puts a version of the user space libraries in place.
func (n *nodeWithDriver) libraries(t *testing.T, root, version string) {
	t.Helper()
	d, err := nvidia.Install(t.Context(), root, "usr/lib/"+nvidia.Triple(), version)
	if err != nil {
		t.Fatal(err)
	}
	n.Driver = d
}

// set gives the kernel side its state.
func (n *nodeWithDriver) set(t *testing.T) {
	t.Helper()
	if err := n.Set(n.control); err != nil {
		t.Fatal(err)
	}
}

// flags point a daemon at the machine.
func (n *nodeWithDriver) flags() []string {
	return []string{
		"--sysfs-root", n.tree.Sys(), "--proc-root", n.tree.Proc(), "--dev-root", n.tree.Dev(), "--driver-root", n.Root,
		"--interval", "2s",
	}
}

// newDriverRig is a cluster whose plugin reads the driver of such a machine.
func newDriverRig(t *testing.T, name string) (*rig, *nodeWithDriver) {
	t.Helper()
	r := newRig(t, options{name: name, held: true})
	n := installDriver(t, r.dir)
	r.plugin.args = append(n.flags(), "--node-name", r.Node(),
		"--state-dir", r.stateDir(), "--config", filepath.Join(r.dir, "config"))
	return r, n
}

// daemon is one that reads the driver on the same machine. It is not started.
func (n *nodeWithDriver) daemon(t *testing.T, r *rig, name string) *process {
	t.Helper()
	return r.another(t, program(t, nodeProgram), name, append(n.flags(), "--node-name", r.Node(), "--config", filepath.Join(r.dir, "config"))...)
}

// waitDriverLabel waits for the label of the driver's version.
func (r *rig) waitDriverLabel(t *testing.T, version string) {
	t.Helper()
	eventually(t, func() string {
		if got := r.node(t).Labels["nvidia.com/cuda.driver-version.full"]; got != version {
			return fmt.Sprintf("the driver's label is %q, want %q", got, version)
		}
		return ""
	})
}

// supervise starts a daemon and starts it again whenever it ends, as the kubelet
// does: at once, then after ten seconds, twenty, and so on. It counts the ends.
func (p *process) supervise(t *testing.T) (ends func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	count, done := make(chan int, 1), make(chan struct{})
	count <- 0
	if err := p.start(ctx); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		for wait := time.Duration(0); ; wait = max(2*wait, 10*time.Second) {
			select {
			case <-ctx.Done():
				return
			case <-p.done:
			}
			count <- 1 + <-count
			p.log.line("ended: %v; again in %s", p.err, wait)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if err := p.start(ctx); err != nil {
				p.log.line("start: %v", err)
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() int { n := <-count; count <- n; return n }
}

// buildCUDAProgram compiles a program that is linked with libcuda.so.1.
func (n *nodeWithDriver) buildCUDAProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	code := "#include <stdio.h>\nint cuInit(unsigned);\nint main(void) { printf(\"cuInit %d\\n\", cuInit(0)); return 0; }\n"
	source, program := filepath.Join(dir, "cuda.c"), filepath.Join(dir, "cuda")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	cc := exec.CommandContext(t.Context(), "cc", "-o", program, source, "-L", n.Libraries(), "-lcuda")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pid is the daemon's as the host sees it.
func (p *process) pid() int { return p.cmd.Process.Pid }

// opens are the device nodes below /dev that a container may open.
func (rep *report) opens() (nodes []string) {
	for path, answer := range rep.Open {
		if answer == "ENXIO" && strings.HasPrefix(path, "/dev/") {
			nodes = append(nodes, path)
		}
	}
	return nodes
}
