//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// nodeProgram is the executable of the daemons of a node.
const nodeProgram = "heddle-node"

// idle is for how long the daemons of a node are weighed while nothing happens,
// settling how long they have before.
const idle, settling = 10 * time.Minute, time.Minute

// startTime is how long a daemon may take to start on the node.
const startTime = 30 * time.Second

// nodeDaemons weighs the daemons of a node as installed, three processes of heddle-node,
// beside a real kubelet and API server with the GPUs and HCAs of a DGX H100.
func nodeDaemons(ctx context.Context, log io.Writer) (rows []row, err error) {
	c, i, err := oneNode(ctx, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down(context.WithoutCancel(ctx))) }()
	crd, err := os.ReadFile(filepath.Join(i.Root, "deploy/helm/heddle/crds/topology.heddle.dev_nodetopologies.yaml"))
	if err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, string(crd)); err != nil {
		return nil, err
	}
	w, err := weighNode(ctx, c, i, log)
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("%s idle, 8 GPUs and 12 HCAs, the chart's intervals", idle)
	return []row{
		atMost("heddle-node: memory of three processes, PSS", w.mb, 75, "MB", "/proc/PID/smaps_rollup; "+how),
		atMost("heddle-node: processor time of three processes", 100*w.cpu, 0.4, "% core", "/proc/PID/stat; "+how),
	}, nil
}

// oneNode starts a cluster of one node.
func oneNode(ctx context.Context, log io.Writer) (*cluster.Cluster, *install.Installer, error) {
	cache, err := cluster.DefaultCache()
	if err != nil {
		return nil, nil, err
	}
	i, err := install.New(ctx, filepath.Join(cache, "install-bench"), log)
	if err != nil {
		return nil, nil, err
	}
	c, err := cluster.Up(ctx, cluster.Options{Name: "bench", Log: log})
	return c, i, err
}

// weight is what processes take together: their proportional share of memory, and of a
// core.
type weight struct{ mb, cpu float64 }

// weighNode runs the daemons on the node, and weighs them.
func weighNode(ctx context.Context, c *cluster.Cluster, i *install.Installer, log io.Writer) (w weight, err error) {
	dir, err := os.MkdirTemp("", "heddle-bench-*")
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	dump := filepath.Join(i.Root, "test/machines/dgx-h100.json")
	if err := errors.Join(install.DeviceNodes(dump, dir), placeFile(dir)); err != nil {
		return w, err
	}
	binary, err := i.Build(ctx, nodeProgram)
	if err != nil {
		return w, err
	}
	var pids []int
	for n, own := range [][]string{
		{"device-plugin", "--dev-root", dir, "--state-dir", filepath.Join(dir, "state")},
		{"feature-discovery", "--interval", "60s"},
		{"topo-worker", "--interval", "30s"},
	} {
		pid, end, err := onNode(ctx, c, log, append([]string{
			binary, own[0], "--node-name", c.Node(), "--machine", dump, "--log-level", "warn",
			"--metrics-address", "127.0.0.1:" + strconv.Itoa(19110+n), "--config", filepath.Join(dir, "config"),
		}, own[1:]...))
		if err != nil {
			return w, err
		}
		defer func() { err = errors.Join(err, end()) }()
		pids = append(pids, pid)
	}
	for _, wait := range [][]string{
		{"node/" + c.Node(), `--for=jsonpath={.status.allocatable.nvidia\.com/gpu}=8`},
		{"node/" + c.Node(), `--for=jsonpath={.metadata.labels.nvidia\.com/gpu\.count}=8`},
		{"nodetopology/" + c.Node(), "--for=create"},
	} {
		if _, err := c.Kubectl(ctx, append([]string{"wait", "--timeout=60s"}, wait...)...); err != nil {
			return w, err
		}
	}
	fmt.Fprintf(log, "weighing %d processes for %s\n", len(pids), idle)
	if err := sleep(ctx, settling); err != nil {
		return w, err
	}
	before, err := processorTime(pids)
	if err != nil {
		return w, err
	}
	if err := sleep(ctx, idle); err != nil {
		return w, err
	}
	after, err := processorTime(pids)
	if err != nil {
		return w, err
	}
	w.cpu = (after - before).Seconds() / idle.Seconds()
	w.mb, err = proportional(pids)
	fmt.Fprintf(log, "%.1f MB, %.3f %% of a core\n", w.mb, 100*w.cpu)
	return w, err
}

// onNode starts a program on the node.
func onNode(
	ctx context.Context, c *cluster.Cluster, log io.Writer, args []string,
) (pid int, end func() error, err error) {
	cmd, err := c.NodeCommand(ctx, args[0], args[1:]...)
	if err != nil {
		return 0, nil, err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	end = func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // It ends by the signal.
		return err
	}
	// What enters the node becomes the program, on a busy machine after a while.
	for deadline := time.Now().Add(startTime); ; {
		if err = sleep(ctx, time.Second); err != nil {
			break
		}
		if pid, err = child(cmd.Process.Pid, filepath.Base(args[0])); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return 0, nil, errors.Join(err, end())
	}
	return pid, end, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// processorTime is what processes have used since they started (utime and stime of
// proc_pid_stat(5), in ticks of 10 ms).
func processorTime(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// The name in parentheses may have blanks; field 3 follows it.
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0, fmt.Errorf("processor time of %d: %w", pid, err)
			}
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum, nil
}

// proportional is the PSS of processes, in MB: memory that several have counts in parts.
func proportional(pids []int) (mb float64, err error) { return memory(pids, "Pss:") }

// memory sums a line of smaps_rollup over processes, in MB.
func memory(pids []int, line string) (mb float64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for own := range strings.Lines(string(text)) {
			fields := strings.Fields(own)
			if len(fields) < 2 || fields[0] != line {
				continue
			}
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, fmt.Errorf("memory of %d: %w", pid, err)
			}
			mb += kib * 1024 / 1e6
		}
	}
	return mb, nil
}

// child finds the process of a program at or below pid: entering a node may
// leave a parent behind.
func child(pid int, program string) (int, error) {
	pids := []int{pid}
	for len(pids) > 0 {
		pid, pids = pids[0], pids[1:]
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // It ended.
		}
		if strings.HasPrefix(program, strings.TrimSpace(string(name))) {
			return pid, nil
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(children)) {
			if n, err := strconv.Atoi(field); err == nil {
				pids = slices.Insert(pids, 0, n)
			}
		}
	}
	return 0, fmt.Errorf("no process %s", program)
}

// placeFile writes a static topology and the configuration that names it.
func placeFile(dir string) error {
	static := filepath.Join(dir, "topology.yaml")
	return errors.Join(
		os.Mkdir(filepath.Join(dir, "config"), 0o755),
		os.WriteFile(static, []byte("version: v1\nnodes:\n  bench: {group: dragonfly-1, rails: {0: leaf-a}}\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "config/version"), []byte("v1"), 0o600),
		os.WriteFile(filepath.Join(dir, "config/cluster-config"), []byte("topology: {staticFile: "+static+"}\n"), 0o600))
}
