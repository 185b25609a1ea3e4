// Package hostfile is for files of the node that other processes use too: it replaces them atomically, locks
// directories, and resolves paths below the node's root, or a driver's, which this process sees mounted elsewhere.
// Symbolic links are followed there as on the node: Debian's packages install absolute ones, through
// /etc/alternatives.
package hostfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// Path returns where this process sees the target of a path of the node, which need not exist. An
// empty root is this process's own.
func Path(root, path string) (string, error) { return securejoin.SecureJoin(cmp.Or(root, "/"), path) }

// Program returns the first of these paths of the node with an executable file, or an empty string.
func Program(root string, paths ...string) string {
	for _, path := range paths {
		file, err := Path(root, path)
		if err != nil {
			continue
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// maxRead is more than any file of a daemon has.
const maxRead = 1 << 20

// Read reads a file that a daemon wrote: a regular one of at most 1 MiB. A link, a device or a pipe that somebody
// put into its place is an error, and not read without end.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("not a regular file: %w", fs.ErrInvalid)}
	}
	return bounded(f, maxRead)
}

// ReadAtMost reads a file of another program. One with more bytes is an error.
func ReadAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return bounded(f, most)
}

func bounded(f *os.File, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("more than %d bytes: %w", most, fs.ErrInvalid)}
	}
	return content, err
}

// Remove removes a file, if it exists.
func Remove(path string) error {
	err := os.Remove(path)
	// On a read-only file system the answer is the same for a file that does not exist.
	if _, gone := os.Lstat(path); errors.Is(gone, fs.ErrNotExist) {
		return nil
	}
	return err
}
