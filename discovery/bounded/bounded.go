// Package bounded waits for calls that may never return: to a driver that waits
// for dead firmware, or for a GPU that hangs.
//
// It owns one rule: at most one call of a kind hangs. What does not return in
// its time leaves its goroutine behind, and the next call is rejected until it
// has: no second goroutine, and no second OS thread, waits for a device that is
// stuck. It never cancels a call, since the kernel cannot, and never hands out
// a result that came too late, since it may be hours old.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
)

// DefaultTimeout bounds one reader. Attributes and NVML answer in milliseconds;
// initializing NVML without the persistence daemon takes seconds.
const DefaultTimeout = 10 * time.Second

// ErrTimeout means that a call has not returned in its time, or that an earlier
// one of its kind still has not.
var ErrTimeout = errors.New("no answer")

// Call is one kind of call. The zero value is ready. Its owner uses it, and what
// Start returns, from one goroutine at a time.
//
// The function of a call must own what it writes: it may run long after its
// result stopped to matter.
type Call[T any] struct {
	pending chan Answer[T]
}

// Answer is the result of a call.
type Answer[T any] struct {
	Value T
	Err   error
}

// Do runs f and waits for it until ctx ends.
func (c *Call[T]) Do(ctx context.Context, f func() (T, error)) (T, error) {
	return c.Start(f)(ctx)
}

// Start runs f and returns how to wait for it, so that several calls wait
// together. An answer that is there counts even if ctx has ended.
func (c *Call[T]) Start(f func() (T, error)) (wait func(context.Context) (T, error)) {
	var none T
	if c.Busy() {
		return func(context.Context) (T, error) { return none, ErrTimeout }
	}
	done := make(chan Answer[T], 1)
	c.pending = done
	go func() {
		value, err := f()
		done <- Answer[T]{value, err}
	}()
	return func(ctx context.Context) (T, error) {
		var a Answer[T]
		select {
		case a = <-done:
		case <-ctx.Done():
			if len(done) == 0 {
				return none, ErrTimeout
			}
			a = <-done
		}
		c.pending = nil
		return a.Value, a.Err
	}
}

// Busy reports whether a call has not returned.
func (c *Call[T]) Busy() bool { return c.pending != nil && len(c.pending) == 0 }

// Group is calls of one kind about several things, at most one about each. The
// zero value is ready.
type Group[K comparable, T any] struct {
	calls map[K]*Call[T]
}

// Ask runs f for all keys at once and waits for them together until ctx ends;
// the answers are in the order of the keys.
func (g *Group[K, T]) Ask(ctx context.Context, keys []K, f func(K) (T, error)) []Answer[T] {
	if g.calls == nil {
		g.calls = map[K]*Call[T]{}
	}
	waits := make([]func(context.Context) (T, error), len(keys))
	for i, key := range keys {
		if g.calls[key] == nil {
			g.calls[key] = &Call[T]{}
		}
		waits[i] = g.calls[key].Start(func() (T, error) { return f(key) })
	}
	answers := make([]Answer[T], len(keys))
	for i, wait := range waits {
		answers[i].Value, answers[i].Err = wait(ctx)
	}
	return answers
}

// Busy reports whether a call of the group has not returned.
func (g *Group[K, T]) Busy() bool {
	for _, call := range g.calls {
		if call.Busy() {
			return true
		}
	}
	return false
}

// Reading is a call that remembers its last good value. The zero value is ready.
type Reading[T any] struct {
	call Call[T]
	last T
	good bool
}

// Read returns what f reads within the timeout. With an error comes the last
// good value or, if there was none, what f had understood before its fault.
func (r *Reading[T]) Read(ctx context.Context, timeout time.Duration, f func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	value, err := r.call.Do(ctx, f)
	switch {
	case err == nil:
		r.last, r.good = value, true
	case r.good:
		value = r.last
	}
	return value, err
}

// Last returns the last good value, and whether there is one.
func (r *Reading[T]) Last() (T, bool) { return r.last, r.good }

// Probe returns the entry of Machine.Probes for a reader that ended in err.
func Probe(name string, timeout time.Duration, err error) machine.Probe {
	switch {
	case err == nil:
		return machine.Probe{Name: name, State: machine.ProbeOK}
	case errors.Is(err, ErrTimeout):
		return machine.Probe{Name: name, State: machine.ProbeTimeout, Reason: Reason(timeout, err)}
	}
	return machine.Probe{Name: name, State: machine.ProbeFailed, Reason: err.Error()}
}

// Reason is err as people should read it.
func Reason(timeout time.Duration, err error) string {
	if errors.Is(err, ErrTimeout) {
		return fmt.Sprintf("did not answer in %s", timeout)
	}
	return err.Error()
}
