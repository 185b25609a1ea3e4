package server

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/heddle-dev/heddle/internal/notify"
)

// WatchDir signals wake when kubelet.sock or a socket of a plugin comes or goes in
// the kubelet's plugin directory, or that itself does, until ctx ends. Where
// inotify is not to be had (fs.inotify.max_user_instances is small and shared by
// all of root's processes) it logs that once, and the slow poll remains.
func WatchDir(ctx context.Context, kubeletDir string, wake notify.Signal, log *slog.Logger) {
	dir, reported := filepath.Join(kubeletDir, pluginDir), false
	for ctx.Err() == nil {
		err := follow(ctx, dir, wake, log)
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

// follow watches until the directory goes (nil) or cannot be watched.
func follow(ctx context.Context, dir string, wake notify.Signal, log *slog.Logger) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer watcher.Close()
	// The parent reports when a deleted directory comes back. In a container it
	// is not the host's, and never reports anything.
	parent := filepath.Dir(dir)
	if err := watcher.Add(parent); err != nil {
		return fmt.Errorf("watch %s: %w", parent, err)
	}
	// A missing directory is not an error: the parent reports when it comes.
	watching := watcher.Add(dir) == nil
	wake.Notify()
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return nil
			}
			switch {
			case event.Name == dir && event.Has(fsnotify.Create) && !watching:
				watching = watcher.Add(dir) == nil
				wake.Notify()
			case event.Name == dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				wake.Notify()
				return nil
			case filepath.Dir(event.Name) == dir && relevant(event):
				wake.Notify()
			}
		case err := <-watcher.Errors:
			// An overflow: events were lost, so look.
			log.Debug("events were lost", "err", err)
			wake.Notify()
		case <-ctx.Done():
			return nil
		}
	}
}

// relevant leaves out the checkpoint, which the kubelet renames into place at
// every allocation, and the appearance of the plugin's own sockets.
func relevant(event fsnotify.Event) bool {
	name := filepath.Base(event.Name)
	if name == kubeletSocket {
		return true
	}
	return strings.HasPrefix(name, namePrefix) && event.Has(fsnotify.Remove|fsnotify.Rename)
}
