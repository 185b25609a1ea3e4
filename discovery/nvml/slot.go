package nvml

import (
	"context"
	"sync"
)

// slot lets at most one call at a time hang. A call that does not return in
// its time leaves its goroutine behind, and the slot refuses the next one
// until it has: no second goroutine, and no second OS thread, waits for a
// device that is stuck.
type slot[T any] struct {
	// mu guards pending; it is never held across a call.
	mu      sync.Mutex
	pending chan outcome[T]
}

type outcome[T any] struct {
	value T
	err   error
}

// do runs f and waits for it until ctx ends. The result of a call that came
// too late is thrown away: it may be hours old.
func (s *slot[T]) do(ctx context.Context, f func() (T, error)) (T, error) {
	var none T
	done, ok := s.begin(f)
	if !ok {
		return none, errTimeout
	}
	select {
	case o := <-done:
		s.end()
		return o.value, o.err
	case <-ctx.Done():
		return none, errTimeout
	}
}

func (s *slot[T]) begin(f func() (T, error)) (<-chan outcome[T], bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		select {
		case <-s.pending:
		default:
			return nil, false
		}
	}
	done := make(chan outcome[T], 1)
	s.pending = done
	go func() {
		value, err := f()
		done <- outcome[T]{value, err}
	}()
	return done, true
}

// busy tells whether a call has not returned.
func (s *slot[T]) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending != nil && len(s.pending) == 0
}

func (s *slot[T]) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
}
