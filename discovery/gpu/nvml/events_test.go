package nvml

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// waits answers WaitEvent by a function.
type waits func(wait time.Duration) (Event, error)

func (w waits) WaitEvent(wait time.Duration) (Event, error) { return w(wait) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// watchFor watches for a while and gives what was told, and when.
func watchFor(t *testing.T, library EventLibrary, d time.Duration) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	began := time.Now()
	var told []string
	Watch(ctx, library, discard(), func(e Event) {
		told = append(told, fmt.Sprintf("%s %s %s %d", time.Since(began), e.Kind, e.GPU, e.XID))
	})
	if took := time.Since(began); took != d {
		t.Errorf("Watch returned after %s, its context ended after %s", took, d)
	}
	return told
}

func TestWatchTellsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		got := watchFor(t, waits(func(wait time.Duration) (Event, error) {
			n++
			if n == 3 {
				<-time.After(wait / 2)
				return Event{Kind: EventXID, GPU: "GPU-1", XID: 79}, nil
			}
			<-time.After(wait)
			return Event{}, ErrNoEvent
		}), 10*time.Second)
		if diff := cmp.Diff([]string{"2.5s xid GPU-1 79"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		<-time.After(2 * eventWait)
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
		}), 10*time.Second)
		want := []string{"3s interrupted  0", "3s interrupted  0", "5s interrupted  0"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		<-time.After(2 * eventWait)
	})
}

func TestWatchEndsUnderAHangingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var inside atomic.Int32
		got := watchFor(t, waits(func(time.Duration) (Event, error) {
			inside.Add(1)
			<-release
			return Event{Kind: EventXID}, nil
		}), 5*time.Second)
		if len(got) != 0 || inside.Load() != 1 {
			t.Errorf("told %v, %d calls", got, inside.Load())
		}
		close(release)
		synctest.Wait()
	})
}

// gpusFake answers pulses by a function.
type gpusFake struct {
	known []string
	pulse func(uuid string) (Action, error)
}

func (f gpusFake) Known() []string { return f.known }

func (f gpusFake) Pulse(uuid string) (Action, error) { return f.pulse(uuid) }

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int32
		p := NewPinger(gpusFake{[]string{"GPU-d", "GPU-c", "GPU-b", "GPU-a"}, func(uuid string) (Action, error) {
			switch uuid {
			case "GPU-a":
				return ActionGPUReset, nil
			case "GPU-b":
				return "", fmt.Errorf("temperature: GPU is %w", ErrLost)
			case "GPU-c":
				return "", fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
			}
			asked.Add(1)
			<-release
			return ActionNone, nil
		}}, 0)
		poll := func() (list []string) {
			for _, q := range p.Poll(t.Context()) {
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
		if took := time.Since(began); took != DefaultPulseTimeout || asked.Load() != 1 {
			t.Errorf("three polls took %s and left %d calls on the GPU that hangs, want one timeout and one", took, asked.Load())
		}
		close(release)
		synctest.Wait()
		if got := poll(); got[2] != "GPU-d none <nil>" {
			t.Errorf("the GPU answers again, and: %v", got)
		}
	})
}

func TestActions(t *testing.T) {
	for n, want := range map[uint32]Action{0: ActionNone, 1: ActionGPUReset, 4: ActionDrainAndReset, 7: ActionSystemReboot, 99: "recovery action 99"} {
		if got := action(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// The session is not ended under a call; one that does not return keeps it.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		if err := g.close(time.Second); err != nil || g.enter() {
			t.Errorf("an empty gate: %v, or somebody entered", err)
		}
		g.open()
		for range 2 {
			if !g.enter() {
				t.Fatal("an open gate is shut")
			}
		}
		began := time.Now()
		if err := g.close(time.Second); !errors.Is(err, errBusy) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if !g.enter() {
			t.Error("a gate that could not be closed is shut")
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.close(time.Second); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if g.enter() {
			t.Error("somebody entered while the session ends")
		}
		for range 3 {
			g.leave()
		}
		wg.Wait()
		if g.enter() {
			t.Error("a closed gate is open")
		}
	})
}
