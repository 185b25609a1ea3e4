//go:build cgo && linux

// Package deviceplugin measures heddle-device-plugin as a process: the real
// program, on a machine with a driver that real go-nvml and nvcdi load (a DGX
// H100 of test/nvidia and test/sysfstest, or the machine's own), beside a kubelet of
// test/kubelet and without an API server.
package deviceplugin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/install"
	"github.com/heddle-dev/heddle/test/kubelet"
)

const (
	gpus = "nvidia.com/gpu"
	// patience bounds what takes milliseconds.
	patience = 30 * time.Second
)

// plugin is a running heddle-device-plugin.
type plugin struct {
	pid     int
	gpus    int // of its node
	kubelet *kubelet.Kubelet
}

// start runs the plugin until the benchmark ends. It has offered the node's resources to a
// kubelet when start returns.
func start(b *testing.B, n node) *plugin {
	b.Helper()
	binary := program(b, "heddle", "heddle-node", func(string) (string, error) {
		build, err := install.New(b.Context(), b.TempDir(), nil)
		if err != nil {
			return "", err
		}
		return build.Build(b.Context(), "heddle-node")
	})
	dir := kubelet.Dir(b)
	p := &plugin{kubelet: kubelet.Start(b, dir), gpus: n.gpus}
	cmd := exec.Command(binary, append(append([]string{"device-plugin"}, n.flags...), "--node-name", "n", "--kubelet-dir", dir, "--cdi-dir", filepath.Join(dir, "cdi"),
		"--state-dir", filepath.Join(dir, "state"), "--driver-root", n.driver, "--metrics-address", "127.0.0.1:0")...)
	p.run(b, cmd)
	return p
}

// run starts the program, and ends it with the benchmark. It has offered the
// GPUs when run returns.
func (p *plugin) run(b *testing.B, cmd *exec.Cmd) {
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
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			b.Error(err)
		}
		if err := cmd.Wait(); err != nil || b.Failed() {
			b.Errorf("the plugin ended: %v\n%s", err, log.String())
		}
	})
	p.await(b, func(s kubelet.State) bool { return len(s.Healthy) == p.gpus })
}

func (p *plugin) await(b *testing.B, ok func(kubelet.State) bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	p.kubelet.Wait(ctx, gpus, ok)
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
