package config

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"
)

// poll is how often the directory is read by default. The kubelet takes up to a minute to write a changed ConfigMap,
// and three daemons that woke each second for it used a quarter of their processor time.
const poll = 5 * time.Second

// Watcher holds the last good configuration of a directory and reads it again
// when it changes. Its methods are safe for concurrent use.
type Watcher struct {
	// Every is how often Run reads the directory; 0 means every 5 s.
	Every time.Duration

	dir     string
	rules   RuleCompiler
	log     *slog.Logger
	state   atomic.Pointer[state]
	changed chan struct{}
}

// state is the outcome of the last reads.
type state struct {
	good *Config
	err  error
	// files are the files of the last read; nil if it failed.
	files map[string][]byte
}

// NewWatcher loads the configuration of a directory; a bad one is an error. An
// empty dir stands for the default configuration, which never changes.
func NewWatcher(dir string, rules RuleCompiler, log *slog.Logger) (*Watcher, error) {
	w := &Watcher{dir: dir, rules: rules, log: log, changed: make(chan struct{}, 1)}
	first := &state{good: New(Default())}
	if dir != "" {
		files, err := readDir(dir)
		if err != nil {
			return nil, err
		}
		if first.good, err = Parse(files, w.rules); err != nil {
			return nil, fmt.Errorf("configuration in %s: %w", dir, err)
		}
		first.files = files
	}
	w.state.Store(first)
	return w, nil
}

// Current returns the last good configuration.
func (w *Watcher) Current() *Config { return w.state.Load().good }

// Err is why the last read gave no new configuration; nil if it did. While
// it is not nil, Current is an older configuration than what is written.
func (w *Watcher) Err() error { return w.state.Load().err }

// Changed receives after Current or Err changed. It is for one receiver, and
// several changes may come as one.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Run reads the directory again and again until ctx ends, and then returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	if w.dir == "" {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(cmp.Or(w.Every, poll))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			w.reload()
		}
	}
}

// reload reads the directory and keeps the last good configuration if that
// fails.
func (w *Watcher) reload() {
	old := w.state.Load()
	next := &state{good: old.good}
	files, err := readDir(w.dir)
	if err == nil {
		if next.files = files; old.files != nil && maps.EqualFunc(files, old.files, bytes.Equal) {
			return
		}
		var c *Config
		if c, err = Parse(files, w.rules); err == nil {
			next.good = c
		}
	}
	if err != nil {
		if old.err != nil && old.err.Error() == err.Error() {
			return
		}
		next.err = err
		w.log.Error("bad configuration, keeping the last good one", "dir", w.dir, "err", err)
	} else {
		w.log.Info("configuration changed", "dir", w.dir)
	}
	w.state.Store(next)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
