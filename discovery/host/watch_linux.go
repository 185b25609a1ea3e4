package host

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// watch signals events for whatever may have changed the machine: the kernel's
// object events (what udev listens to) and, since a link that goes up or down
// has none, those of network devices that matter.
func watch(ctx context.Context, matters func(netdev string) bool, events chan<- struct{}) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return watchObjects(ctx, events) })
	group.Go(func() error { return watchLinks(ctx, matters, events) })
	return group.Wait()
}

// watchObjects reads NETLINK_KOBJECT_UEVENT, group 1: the kernel's own
// messages, before udev's rules have run.
func watchObjects(ctx context.Context, events chan<- struct{}) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("kernel events: %w", err)
	}
	// A file of the runtime's poller, so that closing it ends the read.
	file := os.NewFile(uintptr(fd), "uevent")
	defer file.Close() //nolint:errcheck // Opened for reading.
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return fmt.Errorf("kernel events: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { file.Close() }) //nolint:errcheck // Ends the read below.
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("kernel events: %w", err)
	}
	buf := make([]byte, 16<<10)
	for ctx.Err() == nil {
		n, fromKernel, err := receive(raw, buf)
		switch {
		case errors.Is(err, unix.ENOBUFS): // Events were lost.
			signal(events)
		case err != nil:
			return fmt.Errorf("kernel events: %w", err)
		case fromKernel:
			if e, ok := parseUevent(buf[:n]); ok && e.concerns() {
				signal(events)
			}
		}
	}
	return nil
}

type reader interface {
	Read(f func(fd uintptr) (done bool)) error
}

// receive waits for one message and tells whether the kernel sent it: any
// process may send to a netlink group, but only the kernel is port 0.
func receive(raw reader, buf []byte) (n int, fromKernel bool, err error) {
	var from unix.Sockaddr
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		n, from, recvErr = unix.Recvfrom(int(fd), buf, 0)
		return !errors.Is(recvErr, unix.EAGAIN) && !errors.Is(recvErr, unix.EINTR)
	})
	if err == nil {
		err = recvErr
	}
	if err != nil {
		return 0, false, err
	}
	sender, ok := from.(*unix.SockaddrNetlink)
	return n, ok && sender.Pid == 0, nil
}

func watchLinks(ctx context.Context, matters func(netdev string) bool, events chan<- struct{}) error {
	updates := make(chan netlink.LinkUpdate, 64)
	done := make(chan struct{})
	failed := make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return fmt.Errorf("link events: %w", err)
	}
	// The subscription's goroutine closes updates once done is closed and its
	// socket with it; until then it must find somebody who receives.
	defer func() {
		close(done)
		for range updates { //nolint:revive // Drained on purpose.
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("link events: %w", err)
		case u, ok := <-updates:
			if !ok {
				return errors.New("link events: the subscription ended")
			}
			if matters(u.Attrs().Name) {
				signal(events)
			}
		}
	}
}
