//go:build e2e && linux

package devices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// process is a daemon on the node, usually the plugin. Its log goes on over restarts.
type process struct {
	rig    *rig
	binary string
	// daemon is the first argument of heddle-node; empty for another program.
	daemon string
	log    *journal
	// args, unless empty, are all flags, and extra are more, for the next start; always are
	// there beside both.
	args, extra, always []string
	// under, unless empty, is a command that runs the plugin, for the next start.
	under []string

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // of cmd, once done
}

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// mark is a place in the log; since is what was written after it.
func (j *journal) mark() int                    { return len(j.String()) }
func (j *journal) since(mark int) string        { return j.String()[mark:] }
func (j *journal) line(format string, a ...any) { _, _ = fmt.Fprintf(j, "--- "+format+"\n", a...) }

// grep are the lines with a text.
func (j *journal) grep(text string) (lines []string) {
	for line := range strings.Lines(j.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// name names the daemon in messages.
func (p *process) name() string {
	if p.daemon == "" {
		return filepath.Base(p.binary)
	}
	return "heddle-" + p.daemon
}

// another is one more program on the node, or daemon of heddle-node, which ends with the test. It is not started.
func (r *rig) another(t *testing.T, binary, daemon string, args ...string) *process {
	t.Helper()
	p := &process{rig: r, binary: binary, daemon: daemon, log: &journal{}, args: args}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", p.name(), tail(p.log.String(), 3000))
		}
		if err := p.stop(r.ctx(t)); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// start starts the plugin. It does not wait for it to register.
func (p *process) start(ctx context.Context) error {
	if p.running() {
		return errors.New("the plugin is running")
	}
	r := p.rig
	args := p.args
	if len(args) == 0 {
		args = []string{
			"--node-name", r.Node(), "--machine", r.machineFile(), "--dev-root", filepath.Join(r.dir, "gpus"),
			"--state-dir", r.stateDir(), "--config", filepath.Join(r.dir, "config"),
			"--log-level", "debug",
		}
	}
	args = slices.Concat(args, p.always, p.extra)
	// Nothing but stop ends it.
	command := slices.Concat(p.under, []string{p.binary}, args)
	if p.daemon != "" {
		command = slices.Concat(p.under, []string{p.binary, p.daemon}, args)
	}
	cmd, err := r.NodeCommand(context.WithoutCancel(ctx), command[0], command[1:]...)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	p.log.line("start at %s", time.Now().Format(time.RFC3339Nano))
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		p.err = cmd.Wait()
		close(done)
	}()
	return nil
}

// signal is for SIGSTOP, SIGCONT and the like.
func (p *process) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	if !p.running() {
		t.Fatal("the plugin is not running")
	}
	p.log.line("%s at %s", unix.SignalName(s), time.Now().Format(time.RFC3339Nano))
	if err := unix.Kill(p.cmd.Process.Pid, s); err != nil {
		t.Fatal(err)
	}
}

// stop ends the plugin as the kubelet ends a pod: SIGTERM, later SIGKILL. A
// plugin that does not run is fine; one that ends badly is not.
func (p *process) stop(ctx context.Context) error {
	if !p.running() {
		return nil
	}
	p.log.line("SIGTERM at %s", time.Now().Format(time.RFC3339Nano))
	if err := unix.Kill(p.cmd.Process.Pid, unix.SIGTERM); err != nil {
		return err
	}
	late := time.NewTimer(15 * time.Second)
	defer late.Stop()
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("the plugin ended badly: %w", p.err)
		}
		return nil
	case <-late.C:
	case <-ctx.Done():
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return errors.New("the plugin did not end within 15 s of SIGTERM")
}

// kill is kill -9.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, unix.SIGKILL)
	<-p.done
}

// again starts a plugin that does not run and waits until it is ready; that is
// what it returns.
func (p *process) again(t *testing.T) time.Duration {
	t.Helper()
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p.rig.waitRegistered(t)
}
