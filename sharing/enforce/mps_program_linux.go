//go:build linux

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
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/wellknown"
)

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

	mu   sync.Mutex // guards gone
	gone bool       // its PID may be another's now
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
			child.reap()
			child.err = c.Wait()
			close(child.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.path, err)
	}
	return child, nil
}

// reap waits for the daemon's end, without releasing its PID, and kills the
// servers that it left behind: as long as it is a zombie, the group is its own.
func (c *child) reap() {
	for {
		err := unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.signal(syscall.SIGKILL)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}

// signal reaches the daemon and its servers, unless it is gone.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		_ = syscall.Kill(-c.pid, s) // No process left is fine.
	}
}

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
