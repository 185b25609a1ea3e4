package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/internal/notify"
)

// watch signals events for whatever may have changed the machine: the kernel's
// object events (what udev listens to) and, since a link that goes up or down
// has none, those of network devices that matter. It listens when it returns,
// so that what happens during the first scan is not missed. wait returns when
// ctx ended or both sources failed, with their errors; one that fails does not
// end the other.
func (h *Host) watch(ctx context.Context, events notify.Signal) (wait func() error) {
	// Group 1 has the kernel's own messages, before udev's rules have run.
	sources := []source{
		{"kernel object events", unix.NETLINK_KOBJECT_UEVENT, 1}, {"link events", unix.NETLINK_ROUTE, unix.RTMGRP_LINK},
	}
	errs := make([]error, len(sources))
	var wg sync.WaitGroup
	for i, s := range sources {
		file, err := s.open()
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", s.name, err)
			continue
		}
		wg.Go(func() {
			defer file.Close()
			errs[i] = h.listen(ctx, s, file, events)
		})
	}
	return func() error {
		wg.Wait()
		return errors.Join(errs...)
	}
}

// maxEvent bounds the bytes read of one message. An object event has 2 KiB
// (UEVENT_BUFFER_SIZE of include/linux/kobject.h), a link's about as much and, for
// each alternative name of the link, 132 more.
const maxEvent = 8 << 10

// accepts reports whether a message is one to scan for. What may have been cut off is.
func (h *Host) accepts(s source, message []byte) bool {
	if len(message) >= maxEvent {
		return true
	}
	if s.protocol == unix.NETLINK_ROUTE {
		return slices.ContainsFunc(linkNames(message), h.matters)
	}
	e, ok := parseUevent(message)
	return ok && e.concerns(h.vendors)
}

// source is one netlink multicast group.
type source struct {
	name     string
	protocol int
	groups   uint32
}

// open joins the group. The file is of the runtime's poller, so that closing
// it ends a read.
func (s source) open() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, s.protocol)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: s.groups}); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (h *Host) listen(ctx context.Context, s source, file *os.File, events notify.Signal) error {
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // Ends the read below.
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
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
			return fmt.Errorf("%s: %w", s.name, err)
		case fromKernel && h.accepts(s, buf[:n]):
			events.Notify()
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
