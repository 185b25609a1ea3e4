package hostfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

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
	content, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err == nil && len(content) > maxRead {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than %d bytes: %w", maxRead, fs.ErrInvalid)}
	}
	return content, err
}

// Remove removes a file, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
