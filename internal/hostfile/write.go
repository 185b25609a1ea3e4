package hostfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The name of a temporary file. It lies in the target's directory, because the
// CDI caches in use (container-device-interface up to 1.1.0, in containerd 2.2)
// refresh on the event of a file renamed away and not of one that appears:
// "eventMask := fsnotify.Rename | fsnotify.Remove | fsnotify.Write",
// pkg/cdi/cache.go. It is hidden, since readers of node-feature-discovery's
// feature directory skip such names, and ends in neither .json nor .yaml, so
// that no container runtime reads it.
const (
	tempPrefix = ".heddle-"
	tempSuffix = ".tmp"
)

// Durability says which failures a written file survives.
type Durability bool

const (
	// Quick survives the end of the process.
	Quick Durability = false
	// Durable also survives a crash of the node: the content is on the disk before the file
	// has its name.
	Durable Durability = true
)

// Write replaces the file at path atomically unless it has this content already: readers see the old content or the
// new one, never a part. It creates the directory if needed. After an error the old file is still there.
//
// github.com/google/renameio and github.com/moby/sys/atomicwriter always fsync, which a container's start must not
// wait for, and their temporary names end like the target's.
func Write(path string, content []byte, perm fs.FileMode, durability Durability) error {
	if Holds(path, content) {
		return nil
	}
	err := replace(path, content, perm, durability)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Runtimes, and containers of any user, read below the directory.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // See above.
		return err
	}
	return replace(path, content, perm, durability)
}

// WriteJSON replaces the file at path by a value as JSON, as [Write] does.
func WriteJSON(path string, value any, perm fs.FileMode, durability Durability) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return Write(path, append(content, '\n'), perm, durability)
}

// Holds reports whether the file at path has this content.
func Holds(path string, content []byte) bool {
	old, err := Read(path)
	return err == nil && bytes.Equal(old, content)
}

// probePiece is how much of a probe is written at a time.
const probePiece = 4 << 10

// Probe returns an error unless a file of this size can be written in a directory, which it
// creates. It removes the file.
func Probe(dir string, size int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // As in Write.
		return err
	}
	temp, err := os.CreateTemp(dir, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return err
	}
	// In pieces: the daemons' whole heap is some 1.5 MB.
	for piece := make([]byte, probePiece); size > 0 && err == nil; size -= len(piece) {
		_, err = temp.Write(piece[:min(size, len(piece))])
	}
	removed := os.Remove(temp.Name())
	if errors.Is(removed, fs.ErrNotExist) {
		removed = nil // A sweep of leftover files was first: the clock can jump.
	}
	return errors.Join(err, temp.Close(), removed)
}

// IsTemp reports whether a file name is one of a Write that has not renamed its file yet, or
// was interrupted.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

func replace(path string, content []byte, perm fs.FileMode, durability Durability) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return err
	}
	_, err = temp.Write(content)
	if err == nil && durability == Durable {
		err = temp.Sync()
	}
	// CreateTemp makes files that only their owner reads, and Chmod ignores
	// the umask.
	err = errors.Join(err, temp.Chmod(perm), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	if durability == Durable {
		syncDir(dir)
	}
	return nil
}

// syncDir writes the new name to the disk. Every process sees the new file already, so an
// error is ignored: after a power loss the old file may be back, complete.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}
