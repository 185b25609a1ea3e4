package hostfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockRetry is the interval between attempts. A blocking flock(2) could not be canceled by a
	// context.
	lockRetry = 20 * time.Millisecond
	lockPerm  = 0o750
)

// Lock is a directory that one process has at a time. It is held until it is closed, or its process ends,
// however it does.
type Lock struct{ dir *os.File }

// TakeLock creates the directory if needed, and waits until no other process holds it.
//
// It is a flock(2) of the directory itself: a lock file could not be created on a full disk,
// and would be replaced when the directory's content is removed.
func TakeLock(ctx context.Context, path string, log *slog.Logger) (*Lock, error) {
	began := time.Time{}
	if err := os.MkdirAll(filepath.Dir(path), lockPerm); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	for {
		lock, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if lock != nil {
			if !began.IsZero() {
				log.InfoContext(ctx, "the other process has ended", "dir", path, "waited", time.Since(began))
			}
			return lock, nil
		}
		if began.IsZero() {
			began = time.Now()
			log.InfoContext(ctx, "another process works on this directory, waiting for its end", "dir", path)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock of %s: %w", path, context.Cause(ctx))
		case <-time.After(lockRetry):
		}
	}
}

// tryLock returns nil while another process holds the directory, or has just removed it.
func tryLock(path string) (*Lock, error) {
	// Not MkdirAll: it fails when the directory is removed between its two looks.
	if err := os.Mkdir(path, lockPerm); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // No lock is an answer here.
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && stillAt(dir, path) {
		return &Lock{dir: dir}, nil
	}
	_ = dir.Close()
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil //nolint:nilnil // No lock is an answer here.
	}
	return nil, err
}

// Locked reports whether a process holds the directory.
func Locked(path string) bool {
	dir, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }() // This unlocks it, too.
	return errors.Is(unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// stillAt reports whether the directory is still at its path: if it was removed meanwhile, the
// next process locks another one.
func stillAt(dir *os.File, path string) bool {
	opened, err := dir.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(opened, now)
}

// Close unlocks the directory.
func (l *Lock) Close() error {
	if err := l.dir.Close(); err != nil {
		return fmt.Errorf("unlock directory: %w", err)
	}
	return nil
}
