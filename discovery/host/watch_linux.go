package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/internal/notify"
)

// watch signals kernel object events (what udev listens to) that may have changed the machine. It
// listens when it returns, so that what happens during the first scan is not missed. wait returns
// when ctx ended, or with the error of the source.
func (h *Host) watch(ctx context.Context, events notify.Signal) (wait func() error) {
	file, err := openEvents()
	return func() error {
		if err != nil {
			return fmt.Errorf("kernel object events: %w", err)
		}
		defer file.Close()
		return h.listen(ctx, file, events)
	}
}

// maxEvent bounds the bytes read of one message, which has 2 KiB (UEVENT_BUFFER_SIZE of
// include/linux/kobject.h).
const maxEvent = 8 << 10

// openEvents joins the group of the kernel's own messages, before udev's rules have run. The file is
// of the runtime's poller, so that closing it ends a read.
func openEvents() (*os.File, error) {
	fd, err := unix.Socket(
		unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (h *Host) listen(ctx context.Context, file *os.File, events notify.Signal) error {
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // Ends the read below.
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("kernel object events: %w", err)
	}
	buf := make([]byte, maxEvent)
	for ctx.Err() == nil {
		n, fromKernel, err := receive(raw, buf)
		switch {
		case errors.Is(err, unix.ENOBUFS): // Events were lost.
			events.Notify()
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("kernel object events: %w", err)
		case fromKernel:
			if e, ok := parseUevent(buf[:n]); ok && e.concerns(h.vendors) {
				events.Notify()
			}
		}
	}
	return nil
}

// receive waits for one message and reports whether the kernel sent it: any
// process may send to a netlink group, but only the kernel is port 0.
func receive(raw syscall.RawConn, buf []byte) (n int, fromKernel bool, err error) {
	var from unix.Sockaddr
	var failure error
	err = raw.Read(func(fd uintptr) bool {
		n, from, failure = unix.Recvfrom(int(fd), buf, 0)
		return !errors.Is(failure, unix.EAGAIN) && !errors.Is(failure, unix.EINTR)
	})
	if err = errors.Join(err, failure); err != nil {
		return 0, false, err
	}
	sender, ok := from.(*unix.SockaddrNetlink)
	return n, ok && sender.Pid == 0, nil
}
