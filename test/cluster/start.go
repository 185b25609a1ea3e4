//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster/internal/nodens"
)

// overlays are the host directories in which the node has mount points of its own.
func overlays() []string { return []string{"/etc", "/var/lib", "/var/log"} }

// binds are the node's private directories. Their paths are compiled into the
// kubelet, containerd, the CNI library and CDI, or are conventional for plugins.
func binds() []string {
	return []string{
		"/run", "/etc/cdi", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/var/log/pods",
	}
}

// startHolder makes the node's namespaces and the process that pins them.
func (c *Cluster) startHolder(ctx context.Context) error {
	layout, err := json.Marshal(nodens.Layout{
		State: c.state.Dir, Overlays: overlays(), Binds: binds(), Addresses: []string{nodeIP, serviceIP},
	})
	if err != nil {
		return fmt.Errorf("encode node layout: %w", err)
	}
	ready := filepath.Join(c.state.Dir, "run", "ready")
	err = c.start(ctx, compHolder,
		&unix.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET},
		[]string{c.state.Binaries.Node, "hold", "-layout", string(layout), "-ready", ready})
	if err != nil {
		return err
	}
	return c.waitFile(ctx, compHolder, ready)
}

// holder is the pid of the process that pins the namespaces.
func (c *Cluster) holder() (int, error) {
	p, ok := loadPID(c.pidFile(compHolder))
	if !ok || !p.alive() {
		return 0, fmt.Errorf("%s: %w", c.state.Name, ErrNotUp)
	}
	return p.pid, nil
}

// startOnNode starts a component inside the node's namespaces.
func (c *Cluster) startOnNode(ctx context.Context, component string) error {
	holder, err := c.holder()
	if err != nil {
		return err
	}
	return c.start(ctx, component, nil, c.state.command(component), "-holder", strconv.Itoa(holder), "-dir", "/")
}

// start runs a daemon: in the cluster's cgroup, in a session of its own, with a
// log and a pid record. It outlives ctx and this program.
func (c *Cluster) start(
	ctx context.Context, name string, attr *unix.SysProcAttr, command []string, how ...string,
) error {
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := c.enter(context.WithoutCancel(ctx), command, how...)
	cmd.Env = []string{"HOME=" + c.state.Dir, "PATH=" + c.path()}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attr
	if attr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	err = savePID(c.pidFile(name), cmd.Process.Pid)
	// Ends with the daemon; without it a dead one would stay a zombie of this program.
	go func() { _ = cmd.Wait() }()
	if err != nil {
		return fmt.Errorf("start %s: %w%s", name, err, c.logTail(name))
	}
	return nil
}

// enter is a command that runs in the cluster's cgroup and, with -holder, on the node.
func (c *Cluster) enter(ctx context.Context, command []string, how ...string) *exec.Cmd {
	args := []string{"enter"}
	for _, file := range c.cgroups.entry() {
		args = append(args, "-cgroup", file)
	}
	args = append(append(append(args, how...), "--"), command...)
	return exec.CommandContext(ctx, c.state.Binaries.Node, args...)
}

// path has containerd find its shim, and tests find kubectl and ctr.
func (c *Cluster) path() string {
	b := c.state.Binaries
	return b.Containerd + ":" + b.Kubernetes + ":" + filepath.Dir(b.Runc) +
		":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

func (c *Cluster) waitFile(ctx context.Context, component, file string) error {
	return c.wait(ctx, component, []string{component}, func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
}

// wait polls until done is true; it fails early when one of the components it
// depends on has ended, with the end of that one's log.
func (c *Cluster) wait(ctx context.Context, what string, needs []string, done func() bool) error {
	const limit = 3 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		if done() {
			return true, nil
		}
		for _, name := range needs {
			if p, ok := loadPID(c.pidFile(name)); !ok || !p.alive() {
				return false, fmt.Errorf("%s ended%s", name, c.logTail(name))
			}
		}
		return false, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("wait for %s: %w%s", what, err, c.logTail(needs[len(needs)-1]))
	}
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}

func (c *Cluster) logTail(component string) string {
	data, err := os.ReadFile(c.logFile(component))
	if err != nil || len(data) == 0 {
		return ""
	}
	return ": its log ends: " + tail(string(data), 1500)
}
