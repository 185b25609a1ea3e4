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

	"github.com/heddle-dev/heddle/api/wellknown"
)

// program is nvidia-cuda-mps-control for one GPU.
type program struct {
	// path is the program's below root, which becomes its own root unless
	// empty: the driver's programs want the driver's libraries.
	path, root string
	// gpu is the only GPU that the daemon and its server see.
	gpu string
	// pipe and log are the daemon's directories, below root too.
	pipe, log string
	multiUser bool
	// answer bounds a command.
	answer time.Duration
}

// The commands, of NVIDIA's "MPS v2 interface". A default is for servers
// that start later, and lost with the daemon; the others are for later clients of
// the server with a PID. The GPU is 0: a daemon sees only one.
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
	getPercent  = "get_default_active_thread_percentage"
	getServers  = "get_server_list"
	quitCommand = "quit"
)

// percent asks for the default. An answer shows that the daemon is healthy.
func (p *program) percent(ctx context.Context) (float64, error) {
	text, err := p.send(ctx, getPercent)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: unexpected answer %q", getPercent, wellknown.ClipTo(text, 200))
	}
	return percent, nil
}

// limit sets the limits, and verifies that they are set.
func (p *program) limit(ctx context.Context, l daemonLimits) error {
	text, err := p.send(ctx, getServers)
	if err != nil {
		return err
	}
	var servers []int
	for word := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(word); err == nil {
			servers = append(servers, pid)
		}
	}
	for _, command := range commands(l, servers) {
		if _, err := p.send(ctx, command); err != nil {
			return err
		}
	}
	percent, err := p.percent(ctx)
	if err == nil && int(percent+0.5) != l.Percent {
		return fmt.Errorf("the default thread percentage is %g, not the %d that was set", percent, l.Percent)
	}
	return err
}

// This is the only file that starts programs: the control daemon of MPS is one,
// it has no library, and its commands go in by the standard input of another
// copy of it.

func (p *program) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, p.path, args...) //nolint:gosec // The driver's program, with arguments of this package.
	c.Dir = "/"
	c.Env = []string{
		"CUDA_MPS_PIPE_DIRECTORY=" + p.pipe, "CUDA_MPS_LOG_DIRECTORY=" + p.log, "CUDA_VISIBLE_DEVICES=" + p.gpu,
		// It starts nvidia-cuda-mps-server, which lies beside it.
		"PATH=" + filepath.Dir(p.path) + ":/usr/bin:/bin",
	}
	if libraries := os.Getenv("LD_LIBRARY_PATH"); libraries != "" && p.root == "" {
		c.Env = append(c.Env, "LD_LIBRARY_PATH="+libraries)
	}
	// Its own process group, so that one signal reaches its servers too.
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root, Setpgid: true}
	c.WaitDelay = time.Second
	return c
}

// child is a control daemon that this process started.
type child struct {
	pid int
	// done is closed when it has ended, and err is its exit error.
	done chan struct{}
	err  error
}

// start starts the daemon in the foreground. It runs until a signal or a
// command ends it: ctx ends only the start.
func (p *program) start(ctx context.Context) (*child, error) {
	args := []string{"-f"}
	if p.multiUser {
		args = append(args, "-multiuser-server")
	}
	c := p.command(context.WithoutCancel(ctx), args...)
	// No daemon is left behind if this process is killed.
	c.SysProcAttr.Pdeathsig = syscall.SIGTERM
	started, child := make(chan error, 1), &child{done: make(chan struct{})}
	go func() {
		// The kernel sends that signal when the thread ends that started the
		// child. Not unlocked, the thread ends with this goroutine.
		runtime.LockOSThread()
		err := c.Start()
		if err == nil {
			child.pid = c.Process.Pid
		}
		started <- err
		if err == nil {
			if child.err = c.Wait(); child.err == nil {
				child.err = errors.New("exit status 0")
			}
			child.signal(syscall.SIGKILL) // Its servers.
			close(child.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	return child, nil
}

// signal reaches the daemon and its servers, which are in its process group.
func (c *child) signal(s syscall.Signal) { _ = syscall.Kill(-c.pid, s) } // No process left is fine.

// send gives the daemon one command and returns its answer. It fails if no daemon runs.
func (p *program) send(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.answer, fmt.Errorf("none in %s", p.answer))
	defer cancel()
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
		return "", fmt.Errorf("%s: %w: %s", command, err, wellknown.ClipTo(text, 200))
	}
	return text, nil
}
