package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inotify watches directories for entries that come and go. fsnotify's reader has
// 64 KiB of events on its stack, which the runtime keeps as 128 KiB for as long as
// the process watches.
type inotify struct {
	file *os.File
	buf  [4096]byte
}

// event is one change, of the directory that add returned as watch: of its entry
// name, or of itself if that is empty.
type event struct {
	watch int
	mask  uint32
	name  string
}

func newInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	// The file is of the runtime's poller, so that closing it ends a read.
	return &inotify{file: os.NewFile(uintptr(fd), "inotify")}, nil
}

// add watches a directory.
func (n *inotify) add(dir string) (watch int, err error) {
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	conn, err := n.file.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("watch %s: %w", dir, err)
	}
	var failure error
	err = conn.Control(func(fd uintptr) {
		watch, failure = unix.InotifyAddWatch(int(fd), dir, changes|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return 0, fmt.Errorf("watch %s: %w", dir, err)
	}
	return watch, nil
}

// read waits for changes. It fails once the file is closed.
func (n *inotify) read() ([]event, error) {
	size, err := n.file.Read(n.buf[:])
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return parseEvents(n.buf[:size]), nil
}

// parseEvents reads a sequence of struct inotify_event (inotify(7)). The kernel
// writes whole ones; what is cut off ends it.
func parseEvents(b []byte) []event {
	var events []event
	for len(b) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		watch := int32(binary.NativeEndian.Uint32(b)) //nolint:gosec // It is an int of C: -1 after an overflow.
		events = append(events, event{
			watch: int(watch), mask: binary.NativeEndian.Uint32(b[4:]),
			name: string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00")),
		})
		b = b[end:]
	}
	return events
}
