package gpu

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Event is an event that a driver reported.
type Event struct {
	// GPU is the UUID; empty if the driver named no GPU that is known.
	GPU string
	// Code is the code of the report. Its zero value means that waiting failed, or
	// began again: events may have been missed, so the GPUs should be polled.
	Code Code
}

// Interrupted reports whether events may have been missed.
func (e Event) Interrupted() bool { return e.Code == Code{} }

// ErrNoEvent means that nothing happened in the time given.
var ErrNoEvent = errors.New("no event")

// Watch sends every event, in order, until ctx ends. A wait that fails is
// reported as an interruption and repeated after a growing pause: a lost GPU
// makes every wait fail that includes it. Watch returns at once with ctx, and
// leaves at most one wait behind, which ends within EventWait unless the driver
// hangs.
func Watch(ctx context.Context, t Telemetry, logger *slog.Logger, events chan<- Event) {
	var wait bounded.Call[Event]
	var last error // Of the wait before; nil while waiting works.
	var pause time.Duration
	for {
		event, err := wait.Do(ctx, func() (Event, error) { return t.WaitEvent(EventWait) })
		if ctx.Err() != nil {
			return
		}
		var report []Event
		switch works := last == nil || errors.Is(last, ErrAbsent); {
		case err == nil, errors.Is(err, ErrNoEvent):
			if last != nil {
				logger.Info("waiting for GPU events")
				report = append(report, Event{})
			}
			if err == nil {
				report = append(report, event)
			}
			last, pause = nil, 0
		case errors.Is(err, ErrAbsent):
			// The reader opens the session; asking whether it did costs nothing.
			if !errors.Is(last, ErrAbsent) {
				logger.Info("no GPU events until there is a driver and a GPU", "err", err)
			}
			last, pause = err, firstBackoff
		case works:
			logger.Warn("waiting for GPU events failed", "err", err)
			report, last, pause = []Event{{}}, err, firstBackoff
		default:
			report, last, pause = []Event{{}}, err, min(2*pause, lastBackoff)
		}
		send(ctx, events, report)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func send(ctx context.Context, events chan<- Event, report []Event) {
	for _, e := range report {
		select {
		case events <- e:
		case <-ctx.Done():
			return
		}
	}
}
