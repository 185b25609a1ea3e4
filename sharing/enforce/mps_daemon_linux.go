package enforce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/internal/notify"
)

// pace has the timeouts and intervals of a Keeper.
type pace struct {
	// follow is between two looks at the plugin's file.
	follow time.Duration
	// answer bounds a command, start the time until a daemon answers, stop each
	// way to end one.
	answer, start, stop time.Duration
	// poll is between attempts while it starts, health between checks of
	// one that runs.
	poll, health time.Duration
	// first is the pause before it is started again, and doubles up to 64 times of it; one that
	// ran for longer than that begins again with first.
	first time.Duration
}

func usualPace() pace {
	return pace{
		follow: 200 * time.Millisecond, answer: 5 * time.Second, start: 20 * time.Second, stop: 5 * time.Second,
		poll: 100 * time.Millisecond, health: 10 * time.Second, first: time.Second,
	}
}

// maxMisses checks in a row without an answer mean that a daemon hangs.
const maxMisses = 3

// daemon is the control daemon of one GPU: it is started, given its limits,
// watched, started again when it dies or hangs, and stopped.
type daemon struct {
	program program
	// control is the path of nvidia-cuda-mps-control; empty: it is searched.
	control string
	pace    pace
	log     *slog.Logger
	cancel  context.CancelFunc

	changed notify.Signal // new limits
	updated notify.Signal // new status

	mu sync.Mutex // guards what follows
	// status has the limits that are set, and LastRunning of runs that have ended.
	status   Daemon
	want     daemonLimits
	stopping bool
}

// state returns the status for the plugin.
func (d *daemon) state() Daemon {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// setState changes the state of a daemon that is not being stopped, which is final.
func (d *daemon) setState(state State, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, now := &d.status, time.Now()
	if d.stopping {
		return
	}
	if s.State == Running {
		s.LastRunning = now
	}
	s.State, s.Reason, s.Since = state, reason, now
	log := d.log.Info
	switch state {
	case Broken:
		s.Restarts++
		s.LastError = reason
		log = d.log.Warn
	case Stopped:
		d.stopping = true
	case Starting, Running:
	}
	if state != Running {
		s.Percent, s.MemoryMiB = 0, 0
	}
	log("MPS daemon", "gpu", d.program.gpu, "state", string(state), "reason", reason, "restarts", s.Restarts)
	d.updated.Notify()
}

// stop ends the daemon.
func (d *daemon) stop() {
	d.setState(Stopped, "")
	d.cancel()
}

// request requests limits and does not wait.
func (d *daemon) request(l daemonLimits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.want != l {
		d.want = l
		d.changed.Notify()
	}
}

// run keeps the daemon alive until ctx ends, and then ends it.
func (d *daemon) run(ctx context.Context) {
	pause, longest := d.pace.first, 64*d.pace.first
	fault := d.state().Reason // That it ended with an earlier Keeper.
	for {
		began := time.Now()
		d.setState(Starting, fault)
		err := d.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		fault = err.Error()
		d.setState(Broken, fault)
		if time.Since(began) >= longest {
			pause = d.pace.first
		}
		if !notify.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, longest)
	}
}

// runOnce runs the daemon once. The error explains why it ended.
func (d *daemon) runOnce(ctx context.Context) error {
	if err := d.prepare(ctx); err != nil {
		return err
	}
	c, err := d.program.start(ctx)
	if err != nil {
		return err
	}
	defer func() { d.end(context.WithoutCancel(ctx), c) }()
	if err := d.await(ctx, c); err != nil {
		return err
	}
	ticker := time.NewTicker(d.pace.health)
	defer ticker.Stop()
	missed := 0
	d.apply(ctx)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return fmt.Errorf("the control daemon ended: %w", c.err)
		case <-d.changed:
			d.apply(ctx)
		case <-ticker.C:
			if _, err := d.program.percent(ctx); err == nil {
				missed = 0
				d.apply(ctx) // Limits that are not set yet.
			} else if missed++; missed >= maxMisses {
				return fmt.Errorf("the control daemon hangs: %w", err)
			}
		}
	}
}

// prepare finds the program, makes the directories and ends a leftover daemon.
func (d *daemon) prepare(ctx context.Context) error {
	p := &d.program
	if p.path = cmp.Or(d.control, findControl(p.root)); p.path == "" {
		return errors.New("the driver's root has no nvidia-cuda-mps-control")
	}
	// The server runs as the clients' user, and all write there.
	for _, dir := range []string{p.pipe, p.log} {
		if err := openDir(filepath.Join(p.root, dir)); err != nil {
			return fmt.Errorf("directory of MPS: %w", err)
		}
	}
	log := filepath.Join(p.root, p.log, "control.log")
	_ = os.Rename(log, log+".old")          // The log of the previous run, if any, for people.
	_, _ = d.program.send(ctx, quitCommand) // Ends one that an earlier process left behind.
	return ctx.Err()
}

// await waits until a new daemon answers.
func (d *daemon) await(ctx context.Context, c *child) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.pace.start, fmt.Errorf("it does not answer in %s", d.pace.start))
	defer cancel()
	for {
		_, err := d.program.percent(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("the control daemon ended as it started: %w", c.err)
		case <-ctx.Done():
			return fmt.Errorf("the control daemon does not start: %w", err)
		case <-time.After(d.pace.poll):
		}
	}
}

// apply gives the daemon the limits that are wanted now.
func (d *daemon) apply(ctx context.Context) {
	d.mu.Lock()
	l, has, was := d.want, d.status.limits(), d.status.State
	d.mu.Unlock()
	if has == l {
		return
	}
	err := d.program.limit(ctx, l)
	if ctx.Err() != nil {
		return // It is being ended.
	}
	if err == nil && was != Running {
		d.setState(Running, "")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.Percent, d.status.MemoryMiB, d.status.Reason = l.Percent, l.MemoryMiB, ""
	if err != nil { // Some of them may be set.
		d.status.Percent, d.status.MemoryMiB, d.status.Reason = 0, 0, err.Error()
	}
	d.updated.Notify()
}

// end ends a daemon: by its own command, which releases the GPU in order, and then
// by signals.
func (d *daemon) end(ctx context.Context, c *child) {
	select {
	case <-c.done:
		return
	default:
	}
	_, _ = d.program.send(ctx, quitCommand) // Else the signals do.
	for _, s := range []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL} {
		if s != 0 {
			c.signal(s)
		}
		// Even after SIGKILL the driver can hold it.
		select {
		case <-c.done:
			return
		case <-time.After(d.pace.stop):
		}
	}
}

// openDir makes a directory that every user may write in: the user of a
// container is not known.
func openDir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // See below.
		return err
	}
	return os.Chmod(path, 0o777) //nolint:gosec // On purpose, and past the umask.
}
