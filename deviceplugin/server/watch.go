package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/internal/notify"
)

// WatchDir signals changed when kubelet.sock or a socket of a plugin comes or goes in
// the kubelet's plugin directory, or that itself does, until ctx ends. Where
// inotify is not to be had (fs.inotify.max_user_instances is small and shared by
// all of root's processes) it logs that once, and the slow poll remains.
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

// follow watches until the directory goes (nil) or cannot be watched.
func follow(ctx context.Context, dir string, changed notify.Signal) error {
	watcher, err := newInotify()
	if err != nil {
		return err
	}
	defer watcher.file.Close()
	stop := context.AfterFunc(ctx, func() { _ = watcher.file.Close() }) // Ends the read below.
	defer stop()
	// The parent reports when a deleted directory comes back. In a container it
	// is not the host's, and never reports anything.
	parent, err := watcher.add(filepath.Dir(dir))
	if err != nil {
		return err
	}
	// A missing directory is not an error: the parent reports when it comes.
	own, err := watcher.add(dir)
	watching := err == nil
	changed.Notify()
	for {
		events, err := watcher.read()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			switch {
			case watching && concernsItself(e, own, parent, filepath.Base(dir)):
				changed.Notify()
				return nil
			case !watching && e.watch == parent && e.name == filepath.Base(dir):
				own, err = watcher.add(dir)
				watching = err == nil
				changed.Notify()
			case watching && e.watch == own && relevant(e), e.mask&unix.IN_Q_OVERFLOW != 0:
				// Of an overflow: events were lost, so look.
				changed.Notify()
			}
		}
	}
}

// concernsItself reports whether the watched directory was deleted or moved away.
func concernsItself(e event, own, parent int, name string) bool {
	if e.watch == own {
		return e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0
	}
	return e.watch == parent && e.name == name && e.mask&gone != 0
}

// gone are the events of an entry that left its directory.
const gone = unix.IN_DELETE | unix.IN_MOVED_FROM

// relevant leaves out the checkpoint, which the kubelet renames into place at
// every allocation, and the appearance of the plugin's own sockets.
func relevant(e event) bool {
	return e.name == kubeletSocket || strings.HasPrefix(e.name, namePrefix) && e.mask&gone != 0
}
