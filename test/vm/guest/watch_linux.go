package guest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
)

// errOver ends a watch with its test.
var errOver = errors.New("the test is over")

// Watch keeps a machine current by kernel events alone: the slow ticker would
// come in an hour.
func Watch(t *testing.T) *host.Host {
	t.Helper()
	h := host.New(host.Options{
		NodeName: "guest", Interval: time.Hour, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := h.Run(ctx); err != nil && !errors.Is(err, errOver) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel(errOver)
		running.Wait()
	})
	Await(t, h, "the first scan", func(*machine.Machine) bool { return true })
	return h
}

// Await waits, at most half a minute, until a change of h's machine is the one
// that ok looks for, and returns how long that took.
func Await(t *testing.T, h *host.Host, what string, ok func(*machine.Machine) bool) time.Duration {
	t.Helper()
	began := time.Now()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		select {
		case <-h.Changed():
			if ok(h.Machine()) {
				return time.Since(began)
			}
		case <-limit.C:
			t.Fatalf("no change within half a minute: %s", what)
		}
	}
}
