package program

import (
	"context"
	"log/slog"
	"sync"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/internal/notify"
)

// sharedMachine is one machine for several daemons: one reads it, and the others see what
// that one has read.
type sharedMachine struct {
	ctx    context.Context //nolint:containedctx // Opening it can mean to wait for another daemon.
	reader *Host
	opened chan struct{} // closed when the reader has opened it

	mu      sync.Mutex // guards what follows
	machine Machine
	views   []*view
}

func newSharedMachine() *sharedMachine { return &sharedMachine{opened: make(chan struct{})} }

// add makes a daemon's machine this one. The first daemon reads it.
func (s *sharedMachine) add(ctx context.Context, h *Host) {
	s.ctx, h.shared = ctx, s
	if s.reader == nil {
		s.reader = h
	}
}

// open is [Host.Open] of one of the daemons.
func (s *sharedMachine) open(h *Host, log *slog.Logger) (Machine, error) {
	if h == s.reader {
		m, err := h.openOwn(log)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.machine = m
		s.mu.Unlock()
		close(s.opened)
	}
	select {
	case <-s.opened:
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &view{of: s, reads: h == s.reader, changed: notify.New()}
	s.views = append(s.views, v)
	return v, nil
}

// view is the machine as one daemon sees it.
type view struct {
	of      *sharedMachine
	reads   bool
	changed notify.Signal
}

// Run implements [Machine]: the reader's reads for all.
func (v *view) Run(ctx context.Context) error {
	if !v.reads {
		<-ctx.Done()
		return nil
	}
	own, cancel := context.WithCancel(ctx)
	var passing sync.WaitGroup
	passing.Go(func() { v.of.pass(own) })
	err := v.of.machine.Run(ctx)
	cancel()
	passing.Wait()
	return err
}

// pass hands changes to all views.
func (s *sharedMachine) pass(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.machine.Changed():
			s.mu.Lock()
			for _, v := range s.views {
				v.changed.Notify()
			}
			s.mu.Unlock()
		}
	}
}

// Scan implements [Machine].
func (v *view) Scan(ctx context.Context) *machine.Machine {
	if v.reads {
		return v.of.machine.Scan(ctx)
	}
	return v.Machine()
}

// Machine implements [Machine].
func (v *view) Machine() *machine.Machine { return v.of.machine.Machine() }

// Changed implements [Machine].
func (v *view) Changed() <-chan struct{} { return v.changed }
