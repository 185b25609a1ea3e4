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

// devicePlugin weighs heddle-device-plugin beside a real kubelet, with the
// GPUs and HCAs of a DGX H100.
func devicePlugin(
	ctx context.Context, c *cluster.Cluster, i *install.Installer, log io.Writer,
) (rows []row, err error) {
	binary, err := i.Build(ctx, nodeProgram)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "heddle-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	dump := filepath.Join(i.Root, "test/machines/dgx-h100.json")
	if err := install.DeviceNodes(dump, dir); err != nil {
		return nil, err
	}
	cmd, err := c.NodeCommand(ctx, binary, "device-plugin",
		"--node-name", c.Node(), "--machine", dump, "--log-level", "warn",
		"--dev-root", dir, "--state-dir", filepath.Join(dir, "state"))
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the device plugin: %w", err)
	}
	defer func() {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // It ends by the signal.
	}()
	if _, err := c.Kubectl(ctx, "wait", "node/"+c.Node(), "--timeout=30s",
		`--for=jsonpath={.status.allocatable.nvidia\.com/gpu}=8`); err != nil {
		return nil, err
	}
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	pid, err := child(cmd.Process.Pid, filepath.Base(binary))
	if err != nil {
		return nil, err
	}
	anon, rss, _, err := resident(pid)
	if err != nil {
		return nil, err
	}
	const proc = "/proc/PID/status, 8 GPUs and 12 HCAs, client-go watching"
	return []row{
		atMost("device-plugin: anonymous resident memory", anon, 20, "MB", proc+": RssAnon"),
		atMost("device-plugin: resident memory", rss, 50, "MB", proc+": VmRSS"),
	}, nil
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
