package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	// pluginDir is the kubelet's directory for sockets of device plugins.
	pluginDir     = "device-plugins"
	kubeletSocket = "kubelet.sock"
	socketSuffix  = ".sock"
	// namePrefix begins the name of every socket of this package. The whole name
	// takes 43 bytes at most: a path of a socket holds 107.
	namePrefix    = "heddle-"
	shownResource = 16
)

// socketPrefix begins the names of a resource's sockets:
// heddle-nvidia.com_gpu-<hash of the resource>-. Each registration adds a random part,
// because a kubelet rejects a path that it still holds (v1.37 manager.go,
// PluginConnected):
//
//	if _, exists := m.endpointStore[resourceName][e.socketPath()]; exists {
//		return fmt.Errorf("device plugin already connected: %s", e.socketPath())
//
// and forgets both connections when it cleans up after that (server/handler.go,
// deregisterClient removes by name and path), so that the path stays taken
// until the kubelet restarts: a plugin that restarts faster than the kubelet
// notices the end of its stream would be locked out. With another path the
// kubelet calls the newer endpoint and drops the older one when it ends.
func socketPrefix(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	shown := strings.ReplaceAll(resource, "/", "_")
	shown = shown[:min(len(shown), shownResource)]
	return namePrefix + shown + "-" + hex.EncodeToString(sum[:3]) + "-"
}

// listen binds a new socket for the resource. Closing it removes its file.
func listen(ctx context.Context, dir, resource string) (net.Listener, error) {
	var config net.ListenConfig
	path := filepath.Join(dir, socketPrefix(resource)+strings.ToLower(rand.Text()[:8])+socketSuffix)
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return listener, nil
}

// KubeletSocket returns where a kubelet takes registrations.
func KubeletSocket(kubeletDir string) string {
	return filepath.Join(kubeletDir, pluginDir, kubeletSocket)
}

// IsSocket reports whether a socket exists.
func IsSocket(path string) bool {
	_, there := identify(path)
	return there
}

// RemoveSockets removes the sockets of all resources that no process listens on.
func RemoveSockets(ctx context.Context, kubeletDir string) error {
	return sweep(ctx, filepath.Join(kubeletDir, pluginDir), namePrefix)
}

// sweep removes sockets that an earlier process left behind, by the prefix of their names. One that
// is listened on belongs to a process that still serves: a rolling upgrade.
func sweep(ctx context.Context, dir, prefix string) error {
	paths, err := filepath.Glob(filepath.Join(dir, prefix+"*"+socketSuffix))
	if err != nil {
		return fmt.Errorf("list sockets: %w", err)
	}
	var errs []error
	for _, path := range paths {
		if alive(ctx, path) {
			continue
		}
		if err := hostfile.Remove(path); err != nil {
			errs = append(errs, fmt.Errorf("remove stale socket: %w", err))
		}
	}
	return errors.Join(errs...)
}

// alive reports whether a process listens on a socket. Connecting and going away
// is nothing to a gRPC server.
func alive(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// identity distinguishes one kubelet.sock from the next at the same path. Inode
// numbers are used again at once, so the time counts too; a socket's mtime is
// when it was bound, and neither chmod nor use changes it.
type identity struct {
	inode uint64
	bound int64 // ns since 1970
}

var errDirectoryGone = errors.New("the directory was deleted under its mount; only a new container mounts it again")

// identify reads the identity of a socket; false if it is missing.
func identify(path string) (identity, bool) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return identity{}, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, false
	}
	return identity{inode: stat.Ino, bound: info.ModTime().UnixNano()}, true
}

// deletion is longer than a directory takes to go.
const deletion = 100 * time.Millisecond

// orphaned reports whether the directory is one that was deleted while mounted:
// it has no link left, and no kubelet will ever put a socket into it. One that is
// just being deleted has none for a moment too, and is not found again.
func orphaned(ctx context.Context, dir string) bool {
	if !unlinked(dir) {
		return false
	}
	select {
	case <-time.After(deletion):
	case <-ctx.Done():
	}
	return unlinked(dir)
}

func unlinked(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

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
