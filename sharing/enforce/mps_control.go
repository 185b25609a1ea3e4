package enforce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// This is the only file that starts programs: the control daemon of MPS is one,
// it has no library, and its commands go in by the standard input of another
// copy of it.

// program is nvidia-cuda-mps-control for one card.
type program struct {
	// path is the program's below root, which becomes its own root unless
	// empty: the driver's programs want the driver's libraries.
	path, root string
	// card is the only GPU that the daemon and its server see.
	card string
	// pipe and log are the daemon's directories, below root too.
	pipe, log string
	multiUser bool
}

func (p *program) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, p.path, args...) //nolint:gosec // The driver's program, with our words.
	c.Dir = "/"
	c.Env = []string{
		"CUDA_MPS_PIPE_DIRECTORY=" + p.pipe, "CUDA_MPS_LOG_DIRECTORY=" + p.log, "CUDA_VISIBLE_DEVICES=" + p.card,
		// It starts nvidia-cuda-mps-server, which lies beside it.
		"PATH=" + filepath.Dir(p.path) + ":/usr/bin:/bin",
	}
	if libraries := os.Getenv("LD_LIBRARY_PATH"); libraries != "" && p.root == "" {
		c.Env = append(c.Env, "LD_LIBRARY_PATH="+libraries)
	}
	// A group of its own, so that one signal reaches its servers too.
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root, Setpgid: true}
	c.WaitDelay = time.Second
	return c
}

// child is a control daemon that we started.
type child struct {
	pid int
	// done has the way it ended, once.
	done chan error
}

// start starts the daemon in the foreground. It lives until somebody ends it:
// ctx ends nothing but the start.
func (p *program) start(ctx context.Context) (*child, error) {
	args := []string{"-f"}
	if p.multiUser {
		args = append(args, "-multiuser-server")
	}
	c := p.command(context.WithoutCancel(ctx), args...)
	// Nobody is left behind if we are killed.
	c.SysProcAttr.Pdeathsig = syscall.SIGTERM
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel sends that signal when the thread ends that started the
		// child. Not unlocked, the thread ends with this goroutine.
		runtime.LockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			done <- c.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	return &child{pid: c.Process.Pid, done: done}, nil
}

// signal reaches the daemon and its servers. One that is gone is no error.
func (c *child) signal(s syscall.Signal) { _ = syscall.Kill(-c.pid, s) }

// ask gives the daemon one command and returns what it says. A daemon that is
// not there is an error.
func (p *program) ask(ctx context.Context, command string) (string, error) {
	c := p.command(ctx)
	c.Stdin = strings.NewReader(command + "\n")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	text := strings.TrimSpace(out.String())
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: no answer: %w", command, context.Cause(ctx))
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", command, err, clip(text))
	}
	return text, nil
}

// The commands, of NVIDIA's "MPS v2 interface". A default is for servers that
// come, and lost with the daemon; the others are for clients that come to the
// server of a PID. The card is 0: a daemon sees only one.
func commands(l daemonLimits, servers []int) []string {
	list := []string{fmt.Sprintf("set_default_active_thread_percentage %d", l.Percent)}
	if l.MemoryMiB > 0 {
		list = append(list, fmt.Sprintf("set_default_device_pinned_mem_limit 0 %dM", l.MemoryMiB))
	}
	for _, pid := range servers {
		list = append(list, fmt.Sprintf("set_active_thread_percentage %d %d", pid, l.Percent))
		if l.MemoryMiB > 0 {
			list = append(list, fmt.Sprintf("set_device_pinned_mem_limit %d 0 %dM", pid, l.MemoryMiB))
		}
	}
	return list
}

const (
	askPercent = "get_default_active_thread_percentage"
	askServers = "get_server_list"
	tellQuit   = "quit"
)

// percent asks for the default. An answer shows that the daemon is well.
func (p *program) percent(ctx context.Context) (float64, error) {
	text, err := p.ask(ctx, askPercent)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(lastLine(text), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: it says %q", askPercent, clip(text))
	}
	return percent, nil
}

// limit sets the limits, and looks whether they are set.
func (p *program) limit(ctx context.Context, l daemonLimits) error {
	text, err := p.ask(ctx, askServers)
	if err != nil {
		return err
	}
	var servers []int
	for word := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(word); err == nil {
			servers = append(servers, pid)
		}
	}
	var errs []error
	for _, command := range commands(l, servers) {
		_, err := p.ask(ctx, command)
		errs = append(errs, err)
	}
	percent, err := p.percent(ctx)
	if err == nil && int(percent+0.5) != l.Percent {
		err = fmt.Errorf("the default thread percentage is %g, not the %d that was set", percent, l.Percent)
	}
	return errors.Join(append(errs, err)...)
}

func lastLine(text string) string { return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]) }

// clip bounds what a program says.
func clip(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
