package hostfile

import (
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
func Read(path string) ([]byte, error) { return read(path, maxRead, unix.O_NOFOLLOW) }

// ReadForeign reads a file that others wrote: a regular one, or a link to one, of at most limit bytes.
func ReadForeign(path string, limit int64) ([]byte, error) { return read(path, limit, 0) }

func read(path string, limit int64, flag int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flag, 0)
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
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than %d bytes: %w", limit, fs.ErrInvalid)}
	}
	return content, err
}
