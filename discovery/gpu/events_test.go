package gpu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

// telemetry answers by functions.
type telemetry struct {
	wait  func(wait time.Duration) (Event, error)
	pulse func(uuid string) (Action, error)
	usage func(uuid string, after uint64) (Usage, error)
}

func (t telemetry) WaitEvent(wait time.Duration) (Event, error) { return t.wait(wait) }

func (t telemetry) Pulse(uuid string) (Action, error) { return t.pulse(uuid) }

func (t telemetry) Usage(uuid string, after uint64) (Usage, error) { return t.usage(uuid, after) }

type waits func(wait time.Duration) (Event, error)

func code79() Code { return Code{Kind: "XID", Number: 79, Severity: Fatal} }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// watchFor watches for a while and gives what was reported, and when.
func watchFor(t *testing.T, wait waits, d time.Duration) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	began := time.Now()
	var reported []string
	events := make(chan Event)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, telemetry{wait: wait}, discard(), events)
	}()
	for open := true; open; {
		select {
		case e := <-events:
			what := "interrupted"
			if !e.Interrupted() {
				what = e.Code.Kind
			}
			reported = append(reported, fmt.Sprintf("%s %s %s %d", time.Since(began), what, e.GPU, e.Code.Number))
		case <-done:
			open = false
		}
	}
	if took := time.Since(began); took != d {
		t.Errorf("Watch returned after %s, its context ended after %s", took, d)
	}
	return reported
}

func TestWatchReportsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		got := watchFor(t, waits(func(wait time.Duration) (Event, error) {
			n++
			if n == 3 {
				<-time.After(wait / 2)
				return Event{GPU: "GPU-1", Code: code79()}, nil
			}
			<-time.After(wait)
			return Event{}, ErrNoEvent
		}), 20*time.Second)
		if diff := cmp.Diff([]string{"10s XID GPU-1 79"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		<-time.After(2 * EventWait)
	})
}

// Errors are no busy loop, and no storm of Events: the pause doubles to 30 s.
func TestWatchBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls int
		got := watchFor(t, waits(func(time.Duration) (Event, error) {
			calls++
			return Event{}, errors.New("wait for events: Unknown Error")
		}), 100*time.Second)
		var want []string
		for _, at := range []string{"0s", "1s", "3s", "7s", "15s", "31s", "1m1s", "1m31s"} {
			want = append(want, at+" interrupted  0")
		}
		if diff := cmp.Diff(want, got); diff != "" || calls != len(want) {
			t.Errorf("%d calls, (-want +got):\n%s", calls, diff)
		}
	})
}

// After a failure the GPUs are looked at: something may have been missed.
func TestWatchComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		got := watchFor(t, waits(func(wait time.Duration) (Event, error) {
			n++
			switch {
			case n <= 2:
				return Event{}, fmt.Errorf("NVML is %w: no session", ErrAbsent)
			case n == 4:
				return Event{}, fmt.Errorf("wait for events: GPU is %w", ErrLost)
			}
			<-time.After(wait)
			return Event{}, ErrNoEvent
		}), 12*time.Second)
		want := []string{"6s interrupted  0", "6s interrupted  0", "11s interrupted  0"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		<-time.After(2 * EventWait)
	})
}

func TestWatchEndsUnderAHangingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var inside atomic.Int32
		got := watchFor(t, waits(func(time.Duration) (Event, error) {
			inside.Add(1)
			<-release
			return Event{Code: code79()}, nil
		}), 5*time.Second)
		if len(got) != 0 || inside.Load() != 1 {
			t.Errorf("reported %v, %d calls", got, inside.Load())
		}
		close(release)
		synctest.Wait()
	})
}

// with is a machine that has GPUs.
func with(uuids ...string) *machine.Machine {
	m := &machine.Machine{}
	for _, uuid := range uuids {
		m.GPUs = append(m.GPUs, machine.GPU{UUID: uuid})
	}
	return m
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int32
		p := NewPoller(telemetry{pulse: func(uuid string) (Action, error) {
			switch uuid {
			case "GPU-a":
				return "GPU reset", nil
			case "GPU-b":
				return "", fmt.Errorf("temperature: GPU is %w", ErrLost)
			case "GPU-c":
				return "", fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
			}
			asked.Add(1)
			<-release
			return ActionNone, nil
		}})
		poll := func() (list []string) {
			for _, q := range p.Poll(t.Context(), with("GPU-d", "GPU-c", "GPU-b", "GPU-a")) {
				list = append(list, fmt.Sprintf("%s %s %v", q.GPU, q.Action, q.Err))
			}
			return list
		}
		want := []string{"GPU-a GPU reset <nil>", "GPU-b  temperature: GPU is lost", "GPU-d  no answer"}
		began := time.Now()
		for range 3 {
			if diff := cmp.Diff(want, poll()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		if took := time.Since(began); took != PollTimeout || asked.Load() != 1 {
			t.Errorf("three polls took %s and left %d calls on the GPU that hangs, want one timeout and one", took, asked.Load())
		}
		close(release)
		synctest.Wait()
		if got := poll(); got[2] != "GPU-d none <nil>" {
			t.Errorf("the GPU answers again, and: %v", got)
		}
	})
}
