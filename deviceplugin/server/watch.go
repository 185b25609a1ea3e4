package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/heddle-dev/heddle/internal/notify"
)

// WatchDir signals changed when kubelet.sock or a socket of a plugin is created or
// deleted in the kubelet's plugin directory, or the directory itself is, until ctx
// ends. Without inotify (fs.inotify.max_user_instances is small and shared by
// all of root's processes) it logs that once and leaves changes to the slow poll.
func WatchDir(ctx context.Context, kubeletDir string, changed notify.Signal, log *slog.Logger) {
	dir, reported := filepath.Join(kubeletDir, pluginDir), false
	for ctx.Err() == nil {
		err := follow(ctx, dir, changed)
		if err != nil && !reported {
			log.Warn("directory is not watched, only polled", "dir", dir, "poll", poll, "err", err)
		}
		reported = err != nil
		if err != nil {
			select {
			case <-time.After(poll):
			case <-ctx.Done():
			}
		}
	}
}

// follow watches until the directory is created, deleted or renamed (nil), or
// cannot be watched.
func follow(ctx context.Context, dir string, changed notify.Signal) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	// The parent reports when a deleted directory is created again. In a container
	// it is not the host's, and never reports anything.
	if err := watcher.Add(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("watch %s: %w", filepath.Dir(dir), err)
	}
	// A missing directory is not an error: the parent reports its creation.
	_ = watcher.Add(dir)
	changed.Notify()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch %s: %w", dir, err)
			}
			changed.Notify() // Events were lost.
		case e := <-watcher.Events:
			switch {
			case e.Name == dir && !e.Has(fsnotify.Chmod) && !e.Has(fsnotify.Write):
				return nil
			case filepath.Dir(e.Name) == dir && relevant(e):
				changed.Notify()
			}
		}
	}
}

// relevant excludes the checkpoint, which the kubelet renames into place at
// every allocation, and the creation of the plugin's own sockets.
func relevant(e fsnotify.Event) bool {
	name, deleted := filepath.Base(e.Name), e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	return name == kubeletSocket || strings.HasPrefix(name, namePrefix) && deleted
}
