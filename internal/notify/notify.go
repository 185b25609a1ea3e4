// Package notify wakes a daemon's loop: by a [Signal] when something changed, and by a
// [Retry] when a round failed.
package notify

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Signal is a channel of capacity one, for one receiver. It carries no value: the
// receiver reads the state that changed, so signals that it has not received yet are
// merged. The nil Signal, like a nil channel, is never received.
type Signal chan struct{}

// New returns an unset signal.
func New() Signal { return make(Signal, 1) }

// Notify sets the signal. It never blocks, and does nothing if the signal is already set.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// ErrNotYet means that a round lacks a value that wakes the daemon when it arrives.
var ErrNotYet = errors.New("not yet")

// The delays before a failed round is tried again: doubled each time, with up to a fifth more.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Retry says when a daemon tries a failed round again. The zero value is ready to use.
type Retry struct{ delay time.Duration }

// After logs how a round ended and returns a channel that fires when the round should be
// tried again. It returns nil, which never fires, after a success and after [ErrNotYet].
func (r *Retry) After(ctx context.Context, log *slog.Logger, err error) <-chan time.Time {
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, ErrNotYet):
		log.DebugContext(ctx, "waiting", "for", err)
		return nil
	case err == nil:
		r.delay = 0
		return nil
	}
	r.delay = min(max(2*r.delay, firstRetry), lastRetry)
	delay := r.delay + rand.N(r.delay/5) //nolint:gosec // Jitter needs no strong random numbers.
	log.ErrorContext(ctx, "round failed, will retry", "err", err, "retry_in", delay)
	return time.After(delay)
}

// Sleep waits for d, and reports whether it passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
