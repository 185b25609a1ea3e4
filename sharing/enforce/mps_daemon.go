package enforce

import (
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

// daemonLimits are the limits of one GPU's daemon. They hold for every client
// that requests more or nothing, and so are the largest that a client was granted.
type daemonLimits struct {
	Percent int
	// MemoryMiB of 0 sets none.
	MemoryMiB int64
}

// State is the state of a GPU's control daemon.
type State string

// The states of a daemon.
const (
	// Starting: a client that starts now would not be limited, so none is started.
	Starting State = "starting"
	// Running: it answers, and has the limits.
	Running State = "running"
	// Broken: it died, hangs or does not start, and will be started again.
	Broken State = "broken"
	// Stopped: the GPU has no consumers.
	Stopped State = "stopped"
)

// pace has the timeouts and intervals.
type pace struct {
	// answer bounds a command, start the time until a daemon answers, stop each
	// way to end one.
	answer, start, stop time.Duration
	// poll is between attempts while it starts, health between checks of
	// one that runs; misses checks in a row without an answer mean that it hangs.
	poll, health time.Duration
	misses       int
	// first and longest are the pauses before it is started again; one that
	// ran for steady begins again with first.
	first, longest, steady time.Duration
}

func usualPace() pace {
	return pace{
		answer: 5 * time.Second, start: 20 * time.Second, stop: 5 * time.Second,
		poll: 100 * time.Millisecond, health: 10 * time.Second, misses: 3,
		first: time.Second, longest: time.Minute, steady: time.Minute,
	}
}

// daemon is the control daemon of one GPU: it is started, given its limits,
// watched, started again when it dies or hangs, and stopped.
type daemon struct {
	program program
	pace    pace
	// modes is nil unless the GPU is to be in EXCLUSIVE_PROCESS.
	modes  ComputeModes
	marker string
	log    *slog.Logger

	launcher launcher
	// cancel ends a daemon that runs, and is nil for another. The lock of mps
	// guards it.
	cancel context.CancelCauseFunc

	changed notify.Signal // new limits

	mu sync.Mutex // guards what follows
	// status has no Clients, no limits, and LastRunning of runs that have ended.
	status Daemon
	// want are the limits to set, has those that are set, failed those that the
	// daemon did not take; the zero value is none.
	want, has, failed daemonLimits
	updated           chan struct{} // closed when any of these changes
}

func (d *daemon) update(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.updated)
	d.updated = make(chan struct{})
}

func (d *daemon) setState(state State, reason string) {
	restarts := 0
	d.update(func() {
		s, now := &d.status, time.Now()
		if s.State == Running {
			s.LastRunning = now
		}
		s.State, s.Reason, s.Since = state, reason, now
		if state != Running {
			d.has, d.failed = daemonLimits{}, daemonLimits{}
		}
		if state == Broken {
			s.Restarts++
			s.LastError = reason
		}
		restarts = s.Restarts
	})
	log := d.log.Info
	if state == Broken || state == Stopped && reason != "" {
		log = d.log.Warn
	}
	log("MPS daemon", "gpu", d.program.gpu, "state", string(state), "reason", reason, "restarts", restarts)
}

// limit requests limits and waits until they hold.
func (d *daemon) limit(ctx context.Context, l daemonLimits) error {
	d.request(l)
	for {
		d.mu.Lock()
		updated := d.updated
		set, failed := d.has == d.want, d.failed == d.want
		state, reason := d.status.State, d.status.Reason
		d.mu.Unlock()
		switch {
		case set:
			return nil
		case failed:
			return fmt.Errorf("%w: MPS daemon: %s", ErrNotReady, reason)
		}
		select {
		case <-updated:
		case <-ctx.Done():
			if reason != "" {
				reason = ": " + reason
			}
			return fmt.Errorf("%w: MPS daemon is %s%s: %w", ErrNotReady, state, reason, context.Cause(ctx))
		}
	}
}

// errRetired is the cause of the end of a daemon that has no clients.
var errRetired = errors.New("the GPU has no consumers")

// leaves reports whether the daemon goes on although ctx has ended: this process ends,
// and the launcher does not.
func (d *daemon) leaves(ctx context.Context) bool {
	return ctx.Err() != nil && d.launcher.outlives() && !errors.Is(context.Cause(ctx), errRetired)
}

// retire ends the daemon. A later request for limits waits for the next one.
func (d *daemon) retire() {
	d.cancel(errRetired)
	d.update(func() { d.has, d.failed = daemonLimits{}, daemonLimits{} })
}

// request requests limits and does not wait.
func (d *daemon) request(l daemonLimits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.want != l || d.failed == l {
		d.want, d.failed = l, daemonLimits{}
		d.changed.Notify()
	}
}

// run keeps the daemon alive until ctx ends, and then ends it.
func (d *daemon) run(ctx context.Context) {
	pause, fault := d.pace.first, ""
	for {
		began := time.Now()
		d.setState(Starting, fault)
		err := d.runOnce(ctx)
		if ctx.Err() != nil {
			break
		}
		fault = err.Error()
		d.setState(Broken, fault)
		if time.Since(began) >= d.pace.steady {
			pause = d.pace.first
		}
		if !rest(ctx, pause) {
			break
		}
		pause = min(2*pause, d.pace.longest)
	}
	if d.leaves(ctx) {
		return
	}
	reason := ""
	if err := d.exclusive(context.WithoutCancel(ctx), false); err != nil {
		reason = err.Error()
	}
	d.setState(Stopped, reason)
}

// runOnce is one run of the daemon. The error is why it ended.
func (d *daemon) runOnce(ctx context.Context) error {
	c, err := d.launch(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if d.leaves(ctx) {
			c.detach()
			return
		}
		d.end(context.WithoutCancel(ctx), c)
	}()
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
		case <-c.ended():
			return fmt.Errorf("the control daemon ended: %w", orNil(c.fault()))
		case <-d.changed:
			d.apply(ctx)
		case <-ticker.C:
			if missed, err = d.check(ctx, missed); missed >= d.pace.misses {
				return d.silent(c, err)
			}
		}
	}
}

// silent is why a daemon no longer answers: one that has just died is reported a
// moment later.
func (d *daemon) silent(c process, err error) error {
	select {
	case <-c.ended():
		return fmt.Errorf("the control daemon ended: %w", orNil(c.fault()))
	case <-time.After(d.pace.answer):
		return fmt.Errorf("the control daemon hangs: %w", err)
	}
}

// launch finds the daemon that an earlier process left, or starts one.
func (d *daemon) launch(ctx context.Context) (process, error) {
	c, found, err := d.launcher.attach(ctx, &d.program)
	if err != nil {
		return nil, err
	}
	if found {
		if err := d.exclusive(ctx, true); err != nil {
			c.detach()
			return nil, err
		}
		return c, nil
	}
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	return d.launcher.start(ctx, &d.program)
}

// errEnded is the error of a daemon that ended without reporting a fault.
var errEnded = errors.New("exit status 0")

func orNil(err error) error {
	if err == nil {
		return errEnded
	}
	return err
}

// prepare makes the directories, sets the compute mode and ends a leftover
// daemon.
func (d *daemon) prepare(ctx context.Context) error {
	p := &d.program
	// The server runs as the clients' user, and all write there.
	for _, dir := range []string{p.pipe, p.log} {
		if err := openDir(filepath.Join(p.root, dir)); err != nil {
			return fmt.Errorf("directory of MPS: %w", err)
		}
	}
	log := filepath.Join(p.root, p.log, "control.log")
	_ = os.Rename(log, log+".old") // The log of the previous run, for people; there may be none.
	if err := d.exclusive(ctx, true); err != nil {
		return err
	}
	return d.quitLeftover(ctx)
}

// quitLeftover ends a daemon that an earlier run of this process left behind.
func (d *daemon) quitLeftover(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < d.pace.start; {
		_, err := d.program.send(ctx, quitCommand)
		if err != nil || !rest(ctx, d.pace.poll) { // No daemon is there.
			return ctx.Err()
		}
	}
	return errors.New("another control daemon is there and does not end")
}

// await waits until a new daemon answers.
func (d *daemon) await(ctx context.Context, c process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.pace.start, fmt.Errorf("it does not answer in %s", d.pace.start))
	defer cancel()
	for {
		_, err := d.program.percent(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.ended():
			return fmt.Errorf("the control daemon ended as it started: %w", orNil(c.fault()))
		case <-ctx.Done():
			return fmt.Errorf("the control daemon does not start: %w", err)
		case <-time.After(d.pace.poll):
		}
	}
}

// apply gives the daemon the limits that are wanted now.
func (d *daemon) apply(ctx context.Context) {
	d.mu.Lock()
	l, has, was := d.want, d.has, d.status.State
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
	d.update(func() {
		if d.has, d.status.Reason = l, ""; err != nil {
			// Some of them may be set.
			d.has, d.failed, d.status.Reason = daemonLimits{}, l, err.Error()
		}
	})
}

// check verifies that the daemon answers, and sets limits that are not set yet.
func (d *daemon) check(ctx context.Context, missed int) (int, error) {
	if _, err := d.program.percent(ctx); err != nil {
		return missed + 1, err
	}
	d.apply(ctx)
	return 0, nil
}

// end ends a daemon: by its own command, which releases the GPU in order, and then
// by signals.
func (d *daemon) end(ctx context.Context, c process) {
	select {
	case <-c.ended():
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
		case <-c.ended():
			return
		case <-time.After(d.pace.stop):
		}
	}
}

// rest reports whether the time passed before ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
