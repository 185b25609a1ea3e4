package nvml

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// EventKind is what an event is about.
type EventKind string

// The kinds of events.
const (
	// EventXID is an error report of the driver (nvmlEventTypeXidCriticalError).
	EventXID EventKind = "xid"
	// EventECC is a double-bit error of memory (nvmlEventTypeDoubleBitEccError).
	EventECC EventKind = "double-bit-ecc"
	// EventInterrupted means that waiting failed, or began anew: events may
	// have been missed, so the GPUs should be looked at.
	EventInterrupted EventKind = "interrupted"
)

// Event is something that the driver said by itself.
type Event struct {
	Kind EventKind
	// GPU is the UUID; empty if the driver named a GPU that nobody knows, and
	// for EventInterrupted.
	GPU string
	// XID is the number of an EventXID.
	XID uint64
}

// EventLibrary waits for events. [System]'s library does.
type EventLibrary interface {
	// WaitEvent returns the next event, or ErrNoEvent after at most about the
	// time given. It waits for the GPUs that the reader has read. ErrAbsent if
	// no session is open; after any other error the next call starts anew.
	WaitEvent(wait time.Duration) (Event, error)
}

// ErrNoEvent means that nothing happened in the time given.
var ErrNoEvent = errors.New("no event")

const (
	// eventWait bounds one wait, so that a session can be ended. An event
	// ends the wait at once.
	eventWait = time.Second
	// firstBackoff doubles up to lastBackoff while waiting fails.
	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second
)

// Watch gives every event to tell, in order and one at a time, until ctx ends;
// tell must not block for long. A wait that fails is told as EventInterrupted and
// tried again after a growing pause: a lost GPU makes every wait fail that has
// it. It returns at once with ctx, and leaves at most one wait behind, which
// ends within a second unless the driver hangs.
func Watch(ctx context.Context, library EventLibrary, logger *slog.Logger, tell func(Event)) {
	w := watch{library: library, logger: logger, tell: tell}
	for ctx.Err() == nil {
		event, err := w.next(ctx)
		if ctx.Err() != nil {
			return
		}
		if pause := w.handle(event, err); pause > 0 {
			sleep(ctx, pause)
		}
	}
}

type watch struct {
	library EventLibrary
	logger  *slog.Logger
	tell    func(Event)
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
		event, err := w.library.WaitEvent(eventWait)
		done <- answer{event, err}
	}()
	select {
	case a := <-done:
		return a.event, a.err
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// handle tells an event, or returns how long to pause after an error.
func (w *watch) handle(event Event, err error) time.Duration {
	switch {
	case err == nil || errors.Is(err, ErrNoEvent):
		if w.absent || w.backoff > 0 {
			w.logger.Info("waiting for GPU events")
			w.tell(Event{Kind: EventInterrupted})
		}
		w.absent, w.backoff = false, 0
		if err == nil {
			w.tell(event)
		}
		return 0
	case errors.Is(err, ErrAbsent):
		// The reader opens the session; asking whether it did costs nothing.
		if !w.absent {
			w.logger.Info("no GPU events until there is a driver and a GPU", "err", err)
		}
		w.absent, w.backoff = true, 0
		return firstBackoff
	}
	if w.backoff == 0 {
		w.logger.Warn("waiting for GPU events failed", "err", err)
	}
	w.tell(Event{Kind: EventInterrupted})
	w.backoff = min(max(2*w.backoff, firstBackoff), lastBackoff)
	return w.backoff
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
