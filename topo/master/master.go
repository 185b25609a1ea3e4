// Package master keeps the fabric's tree in step with the API server.
//
// It owns the one goroutine that feeds topo/fabric, and the view that all
// answers are made of: everyone reads the last one, nobody waits for the next.
// It holds no state that the API server does not have: a new replica with the
// same Nodes and reports says the same. Answers are serve's, writes publish's,
// watches facts'.
package master

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// Source is where Nodes, reports and pods come from: facts.Source.
type Source interface {
	Changed() <-chan struct{}
	Synced() bool
	Contact() time.Time
	Take() informers.Batch
}

// Options are what a Master needs.
type Options struct {
	Source Source
	// CountsPods tells whether the source knows pods.
	CountsPods bool
	// Levels are the tree's; NewLevels receives others when the configuration
	// changes. A nil NewLevels never does.
	Levels    []fabric.Level
	NewLevels <-chan []fabric.Level
	// StaleAfter is the age from which a heartbeat makes a node Degraded.
	StaleAfter time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// tick is the time between two looks at heartbeats and walks.
const tick = 5 * time.Second

// stuck is the time without a look after which the loop counts as dead.
const stuck = time.Minute

// Master makes views. Its methods are safe for concurrent use.
type Master struct {
	options Options
	state   atomic.Pointer[state]
	// wantWalks is whether somebody writes walks; wanted wakes the loop.
	wantWalks atomic.Bool
	wanted    chan struct{}
	// turned is when the loop last went round.
	turned atomic.Pointer[time.Time]
}

// state is a view and the channel that is closed when the next one is there.
type state struct {
	view *snapshot.Snapshot
	next chan struct{}
}

// New returns a master; Run starts it. It fails on levels that make no sense.
func New(o Options) (*Master, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if _, err := fabric.New(fabric.Config{Levels: o.Levels, StaleAfter: o.StaleAfter}); err != nil {
		return nil, err
	}
	m := &Master{options: o, wanted: make(chan struct{}, 1)}
	m.state.Store(&state{next: make(chan struct{})})
	return m, nil
}

// Current is the last view, nil before the first, and a channel that is closed
// when there is another.
func (m *Master) Current() (v *snapshot.Snapshot, next <-chan struct{}) {
	s := m.state.Load()
	return s.view, s.next
}

// WantWalks says whether views are to have Walks: only the leader needs them.
func (m *Master) WantWalks(on bool) {
	m.wantWalks.Store(on)
	select {
	case m.wanted <- struct{}{}:
	default:
	}
}

// Run keeps the view current until ctx ends. It is quiet until everything has
// been seen once: half a fabric is a wrong one.
func (m *Master) Run(ctx context.Context) error {
	l, err := newLoop(m)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		m.turned.Store(new(m.options.Now()))
		select {
		case <-ctx.Done():
			return nil
		case <-m.options.Source.Changed():
			l.step(ctx, false)
		case <-ticker.C:
			l.step(ctx, true)
		case <-m.wanted:
			l.step(ctx, true)
		case levels := <-m.options.NewLevels:
			if slices.Equal(levels, l.levels) {
				continue
			}
			if err := l.rebuild(levels); err != nil {
				m.options.Log.ErrorContext(ctx, "new levels refused, the old ones stay", "err", err)
				continue
			}
			m.options.Log.InfoContext(ctx, "levels changed", "levels", len(levels))
			l.step(ctx, true)
		}
	}
}

// publish makes v the current view.
func (m *Master) publish(v *snapshot.Snapshot) {
	old := m.state.Swap(&state{view: v, next: make(chan struct{})})
	close(old.next)
}
