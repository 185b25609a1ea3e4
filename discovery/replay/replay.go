// Package replay is a machine out of a file: the dump that `heddle inspect -o
// json` writes, for demos, scale tests and bug reports.
//
// It offers what discovery/host offers, and follows the file as host follows
// the hardware: edited in place, replaced by rename, or swapped as a mounted
// ConfigMap. A file that cannot be read or decoded changes nothing; the last
// good machine stays. It reads no hardware.
package replay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/internal/notify"
)

// DefaultInterval is how often the file is read without an event: inotify
// reports nothing on some network file systems.
const DefaultInterval = 30 * time.Second

// settle is how long a write may take until the file is read.
const settle = 50 * time.Millisecond

// Options of a replayed machine.
type Options struct {
	// Path is the dump.
	Path string
	// NodeName, unless empty, replaces the dump's.
	NodeName string
	// Logger gets changes and faults; nil discards.
	Logger *slog.Logger
	// Interval is the slow poll's; 0 is DefaultInterval.
	Interval time.Duration
}

// Replay is one replayed machine. Its methods may be called from any goroutine.
type Replay struct {
	options  Options
	logger   *slog.Logger
	changed  notify.Signal
	snapshot atomic.Pointer[machine.Machine]

	// mu serializes scans and guards what follows.
	mu sync.Mutex
	// text is what was read last, good or bad.
	text []byte
	// fault is the last fault logged, so that each is logged once.
	fault string
}

// New returns a replay of a file. Nothing is read yet.
func New(o Options) *Replay {
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Replay{options: o, logger: o.Logger, changed: notify.New()}
}

// Load reads a dump once. The error names the file and the place in it.
func Load(path string) (*machine.Machine, error) {
	b, err := read(path)
	if err != nil {
		return nil, err
	}
	m, err := machine.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// read bounds the file before it is in memory.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("machine file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, machine.MaxDump+1))
	if err != nil {
		return nil, fmt.Errorf("machine file: %w", err)
	}
	return b, nil
}

// Machine is the last good machine; nil before the first.
func (r *Replay) Machine() *machine.Machine { return r.snapshot.Load() }

// Changed receives when the machine differs from the one before. Signals that
// no receiver takes become one.
func (r *Replay) Changed() <-chan struct{} { return r.changed }

// Scan reads the file now, and returns the last good machine, nil if there has
// been none.
func (r *Replay) Scan(context.Context) *machine.Machine {
	if err := r.load(); err != nil {
		r.logger.Debug("machine file is bad", "err", err)
	}
	return r.Machine()
}

// load renews the snapshot if the file's text is another. The error is the
// file's; each is logged once.
func (r *Replay) load() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := read(r.options.Path)
	if err != nil {
		r.text = nil
		return r.report(err)
	}
	if r.text != nil && bytes.Equal(b, r.text) {
		if r.fault != "" {
			return errors.New(r.fault)
		}
		return nil
	}
	r.text = b
	m, err := machine.Decode(b)
	if err != nil {
		return r.report(fmt.Errorf("%s: %w", r.options.Path, err))
	}
	r.fault = ""
	m.Node = cmp.Or(r.options.NodeName, m.Node)
	m.Sort()
	if last := r.Machine(); last != nil && equal(last, m) {
		return nil
	}
	r.snapshot.Store(m)
	r.logger.Info("machine changed", "file", r.options.Path, "gpus", len(m.GPUs), "hcas", len(m.HCAs))
	r.changed.Notify()
	return nil
}

func (r *Replay) report(err error) error {
	if r.fault != err.Error() {
		r.fault = err.Error()
		r.logger.Error("machine file is bad, keeping the last good one", "err", err)
	}
	return err
}

func equal(a, b *machine.Machine) bool {
	x, errX := machine.Encode(a)
	y, errY := machine.Encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// Run follows the file until ctx ends, and then returns nil. A file that is bad at the start is an
// error: there is no last good machine to keep.
func (r *Replay) Run(ctx context.Context) error {
	watcher, err := r.watch()
	if err != nil {
		// inotify instances are few, and shared by all of root's processes.
		r.logger.Warn("machine file is not watched, only polled", "err", err, "every", r.options.Interval)
		watcher = &fsnotify.Watcher{} // Which reports nothing.
	} else {
		defer watcher.Close()
	}
	if err := r.load(); err != nil && r.Machine() == nil {
		return err
	}
	return r.follow(ctx, watcher)
}

// watch watches the directory, not the file: a rename over the file leaves a
// watch on the old one, and a ConfigMap swaps the ..data link beside it.
func (r *Replay) watch() (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(filepath.Dir(r.options.Path)); err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	return watcher, nil
}

func (r *Replay) follow(ctx context.Context, watcher *fsnotify.Watcher) error {
	ticker := time.NewTicker(r.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case err := <-watcher.Errors:
			r.logger.Warn("machine file events", "err", err)
		case <-watcher.Events:
			if !settled(ctx, watcher) {
				return nil
			}
		}
		r.Scan(ctx)
	}
}

// settled waits until no event came for a while: an editor writes in pieces,
// and each would be a bad file.
func settled(ctx context.Context, watcher *fsnotify.Watcher) bool {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	for range 20 {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-watcher.Events:
			timer.Reset(settle)
		}
	}
	return true
}
