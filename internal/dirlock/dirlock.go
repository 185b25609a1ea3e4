// Package dirlock lets one process at a time work on a directory. It knows nothing of
// what is in it.
package dirlock

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
	// retry is how often a process that waits asks again. flock(2) waits by itself too,
	// but no context can end that.
	retry = 20 * time.Millisecond
	perm  = 0o750
)

// Lock is held until it is closed, or its process ends, however it does.
type Lock struct{ dir *os.File }

// Take makes a missing directory, and waits until no other process has it.
//
// It is a flock(2) of the directory itself: a file in it could not be made on a full
// disk, and a second one would take its place when all in the directory is removed.
func Take(ctx context.Context, path string, log *slog.Logger) (*Lock, error) {
	began := time.Time{}
	if err := os.MkdirAll(filepath.Dir(path), perm); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	for {
		lock, err := try(path)
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
		case <-time.After(retry):
		}
	}
}

// try returns nil while another process has the directory, or has just removed it.
func try(path string) (*Lock, error) {
	// Not MkdirAll: it fails when the directory is removed between its two looks.
	if err := os.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
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
	if err == nil && same(dir, path) {
		return &Lock{dir: dir}, nil
	}
	_ = dir.Close()
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil //nolint:nilnil // No lock is an answer here.
	}
	return nil, err
}

// Held reports whether a process has the directory.
func Held(path string) bool {
	dir, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }() // This unlocks it, too.
	return errors.Is(unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// same reports whether the directory is still at its path. One that was removed meanwhile
// is not the one that the next process locks.
func same(dir *os.File, path string) bool {
	opened, err := dir.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(opened, now)
}

// Close lets the next process have the directory.
func (l *Lock) Close() error {
	if err := l.dir.Close(); err != nil {
		return fmt.Errorf("unlock directory: %w", err)
	}
	return nil
}
