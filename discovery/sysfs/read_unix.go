//go:build unix

package sysfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// readOnce is open, one read, close, without the poller that os.Open tries to
// enlist every file with: sysfs attributes can be polled, and a scan reads
// hundreds of them. It can hang as long as the driver does; EAGAIN, which some
// drivers answer for ever, is returned.
func readOnce(path string, buf []byte) (int, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return retryEINTR(func() (int, error) { return unix.Read(fd, buf) })
}

// retryEINTR repeats what a signal interrupted. The Go runtime preempts
// goroutines by signals, so that every system call can see one.
func retryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
