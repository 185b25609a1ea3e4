//go:build cgo && linux

// Package deviceplugin measures heddle-device-plugin as a process: the real
// program, on a machine with a driver that real go-nvml and nvcdi load (a DGX
// H100 of test/nvidia and test/sysfstest), beside a kubelet of test/kubelet and
// without an API server.
package deviceplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/install"
	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/nvidia"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

const (
	gpus = "nvidia.com/gpu"
	// version is the driver's.
	version = "550.54.15"
	// patience bounds what takes milliseconds.
	patience = 30 * time.Second
)

// plugin is a running heddle-device-plugin.
type plugin struct {
	pid     int
	kubelet *kubelet.Kubelet
}

// start runs the plugin until the benchmark ends. It has offered the GPUs to a
// kubelet when start returns, and the HCAs as 512 shared devices.
func start(b *testing.B) *plugin {
	b.Helper()
	tree := sysfstest.New(b)
	sysfstest.DGXH100(tree)
	return startOn(b, tree)
}

// startGPUs is start on a machine whose HCAs have no driver: the plugin has one resource, as
// NVIDIA's has.
func startGPUs(b *testing.B) *plugin {
	b.Helper()
	tree := sysfstest.New(b)
	sysfstest.DGXH100(tree)
	if err := os.RemoveAll(filepath.Join(tree.Sys(), "class/infiniband")); err != nil {
		b.Fatal(err)
	}
	return startOn(b, tree)
}

func startOn(b *testing.B, tree *sysfstest.Tree) *plugin {
	b.Helper()
	build, err := install.New(b.Context(), b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	binary, err := build.Build(b.Context(), "heddle-device-plugin")
	if err != nil {
		b.Fatal(err)
	}
	dir := kubelet.Dir(b)
	p := &plugin{kubelet: kubelet.Start(b, dir)}
	driver := installDriver(b)
	cmd := exec.Command(binary, "--node-name", "n", "--kubelet-dir", dir, "--cdi-dir", filepath.Join(dir, "cdi"),
		"--state-dir", filepath.Join(dir, "state"), "--sysfs-root", tree.Sys(), "--proc-root", tree.Proc(),
		"--dev-root", tree.Dev(), "--driver-root", driver.Root, "--metrics-address", "127.0.0.1:0")
	p.run(b, cmd, unix.SIGTERM)
	return p
}

// startLeast runs the least plugin likewise, beside a kubelet of its own.
func startLeast(b *testing.B) *plugin {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "least")
	if out, err := exec.Command("go", "build", "-o", binary, "./least").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	p := &plugin{kubelet: kubelet.Start(b, kubelet.Dir(b))}
	cmd := exec.Command(binary, gpus, p.kubelet.PluginDir())
	for n := range 8 {
		cmd.Args = append(cmd.Args, fmt.Sprintf("GPU-%d", n))
	}
	p.run(b, cmd, unix.SIGKILL)
	return p
}

// run starts the program, and ends it by a signal with the benchmark. It has offered the
// GPUs when run returns.
func (p *plugin) run(b *testing.B, cmd *exec.Cmd, end unix.Signal) {
	b.Helper()
	// As the chart starts it, but without an API server.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=1"}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	b.Cleanup(func() {
		if err := cmd.Process.Signal(end); err != nil {
			b.Error(err)
		}
		if err := cmd.Wait(); end == unix.SIGTERM && err != nil || b.Failed() {
			b.Errorf("the plugin ended: %v\n%s", err, log.String())
		}
	})
	p.await(b, func(s kubelet.State) bool { return len(s.Healthy) == 8 })
}

func (p *plugin) await(b *testing.B, ok func(kubelet.State) bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	p.kubelet.Wait(ctx, gpus, ok)
}

// installDriver makes the driver of the GPUs that the tree of a DGX has.
func installDriver(b *testing.B) *nvidia.Driver {
	b.Helper()
	text, err := os.ReadFile("../../machines/dgx-h100.json")
	if err != nil {
		b.Fatal(err)
	}
	m, err := machine.Decode(text)
	if err != nil {
		b.Fatal(err)
	}
	c := nvidia.Of(m)
	for i := range c.GPUs {
		c.GPUs[i].PCI = sysfstest.GPUAddress(i)
	}
	c.Kernel = version
	d, err := nvidia.Install(b.Context(), b.TempDir(), "usr/lib/"+nvidia.Triple(), version)
	if err != nil {
		b.Fatal(err)
	}
	if err := d.Set(c); err != nil {
		b.Fatal(err)
	}
	nodes := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	for i := range c.GPUs {
		nodes = append(nodes, fmt.Sprintf("nvidia%d", c.GPUs[i].Minor))
	}
	if err := os.Mkdir(filepath.Join(d.Root, "dev"), 0o755); err != nil {
		b.Fatal(err)
	}
	for minor, name := range nodes {
		path := filepath.Join(d.Root, "dev", name)
		// NVIDIA's major number. Nothing opens them.
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(195, uint32(minor)))); errors.Is(err, unix.EPERM) {
			b.Skip("device nodes cannot be made here: ", err)
		} else if err != nil {
			b.Fatal(err)
		}
	}
	return d
}

// processorTime is what all threads of the plugin have used.
func (p *plugin) processorTime(b *testing.B) time.Duration {
	b.Helper()
	// The kernel's CPUCLOCK_SCHED of a process (include/linux/posix-timers.h).
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.pid<<3|2), &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// status reads a field of /proc/PID/status in MB of 2^20 bytes.
func (p *plugin) status(b *testing.B, field string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+field+":")
	kb, err := strconv.ParseFloat(strings.Fields(rest + " none")[0], 64)
	if err != nil {
		b.Fatalf("%s: %v", field, err)
	}
	return kb / 1024
}
