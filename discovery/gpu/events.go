package gpu

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Event is what a driver reported by itself.
type Event struct {
	// GPU is the UUID; empty if the driver named no GPU that is known.
	GPU string
	// Code is what was reported. Its zero value means that waiting failed, or
	// began again: events may have been missed, so the GPUs should be polled.
	Code Code
}

// Interrupted reports whether events may have been missed.
func (e Event) Interrupted() bool { return e.Code == Code{} }

// ErrNoEvent means that nothing happened in the time given.
var ErrNoEvent = errors.New("no event")

const (
	// EventWait bounds one wait, so that a session can be ended. An event
	// ends the wait at once.
	EventWait = time.Second
	// firstBackoff doubles up to lastBackoff while waiting fails.
	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second
)

// Watch sends every event, in order, until ctx ends. A wait that fails is
// reported as an interruption and repeated after a growing pause: a lost GPU
// makes every wait fail that includes it. Watch returns at once with ctx, and
// leaves at most one wait behind, which ends within a second unless the driver
// hangs.
func Watch(ctx context.Context, t Telemetry, logger *slog.Logger, events chan<- Event) {
	w := watch{telemetry: t, logger: logger}
	for ctx.Err() == nil {
		event, err := w.next(ctx)
		if ctx.Err() != nil {
			return
		}
		report, pause := w.handle(event, err)
		for _, e := range report {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
		if pause > 0 {
			sleep(ctx, pause)
		}
	}
}

type watch struct {
	telemetry Telemetry
	logger    *slog.Logger
	// backoff is the last pause; 0 while waiting works.
	backoff time.Duration
	absent  bool
}

// next waits on a goroutine of its own, since the driver may never return.
func (w *watch) next(ctx context.Context) (Event, error) {
	type answer struct {
		event Event
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		event, err := w.telemetry.WaitEvent(EventWait)
		done <- answer{event, err}
	}()
	select {
	case a := <-done:
		return a.event, a.err
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// handle returns the events to report and, after an error, how long to pause.
func (w *watch) handle(event Event, err error) (report []Event, pause time.Duration) {
	switch {
	case err == nil || errors.Is(err, ErrNoEvent):
		if w.absent || w.backoff > 0 {
			w.logger.Info("waiting for GPU events")
			report = append(report, Event{})
		}
		w.absent, w.backoff = false, 0
		if err == nil {
			report = append(report, event)
		}
		return report, 0
	case errors.Is(err, ErrAbsent):
		// The reader opens the session; asking whether it did costs nothing.
		if !w.absent {
			w.logger.Info("no GPU events until there is a driver and a GPU", "err", err)
		}
		w.absent, w.backoff = true, 0
		return nil, firstBackoff
	}
	if w.backoff == 0 {
		w.logger.Warn("waiting for GPU events failed", "err", err)
	}
	w.backoff = min(max(2*w.backoff, firstBackoff), lastBackoff)
	return []Event{{}}, w.backoff
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
