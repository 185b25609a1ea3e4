//go:build linux

package main

import (
	"cmp"
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

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// nodeProgram is the executable of the daemons of a node.
const nodeProgram = "heddle-node"

// settling is how long the daemons of a node have before they are weighed.
const settling = time.Minute

// startTime is how long a daemon may take to start on the node.
const startTime = 30 * time.Second

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

// daemon is a program that runs on the node.
type daemon struct {
	program string
	// agent names its requests to the API server; empty means the program's name.
	agent string
	// args may have $KUBECONFIG and $NODE_NAME.
	args, env []string
	// sys and dev are the directories that it sees as /sys and /dev; empty means the node's.
	sys, dev string
	// central daemons run once in a cluster: they are not weighed.
	central bool
}

func (d daemon) userAgent() string { return cmp.Or(d.agent, filepath.Base(d.program)) }

// onNode starts a program on the node.
func onNode(
	ctx context.Context, c *cluster.Cluster, log io.Writer, d daemon,
) (pid int, end func() error, err error) {
	env := map[string]string{"KUBECONFIG": c.NodeKubeconfig(), "NODE_NAME": c.Node()}
	command := []string{d.program}
	for _, arg := range d.args {
		command = append(command, os.Expand(arg, func(name string) string { return env[name] }))
	}
	if d.sys != "" || d.dev != "" {
		const script = `[ -z "$1" ] || mount --bind "$1" /sys; [ -z "$2" ] || mount --bind "$2" /dev; shift 2; exec "$@"`
		command = append([]string{"unshare", "--mount", "sh", "-ec", script, "sh", d.sys, d.dev}, command...)
	}
	cmd, err := c.NodeCommand(ctx, command[0], command[1:]...)
	if err != nil {
		return 0, nil, err
	}
	cmd.Env = append(append(cmd.Env, "NODE_NAME="+c.Node(), "NAMESPACE=default", "KUBERNETES_NAMESPACE=default"), d.env...)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", d.program, err)
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
		if pid, err = child(cmd.Process.Pid, filepath.Base(d.program)); err == nil || time.Now().After(deadline) {
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

// processorTime returns the processor time of all threads of a process.
func processorTime(pid int) (time.Duration, error) {
	// The kernel's CPUCLOCK_SCHED of a process (include/linux/posix-timers.h).
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &used); err != nil {
		return 0, fmt.Errorf("processor time of %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// memory is a line of a process' smaps_rollup in MB. Of Pss, memory that several processes have counts in parts.
func memory(pid int, line string) (mb float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for own := range strings.Lines(string(text)) {
		if fields := strings.Fields(own); len(fields) > 1 && fields[0] == line {
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, fmt.Errorf("memory of %d: %w", pid, err)
			}
			return kib * 1024 / 1e6, nil
		}
	}
	return 0, fmt.Errorf("memory of %d: no line %s", pid, line)
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
