//go:build linux

package nodens

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loopback brings lo up and gives it the addresses, each as an alias of its own
// with a host mask. The kubelet rejects a 127/8 node address, and an interface
// that only this namespace has keeps the node unreachable from outside.
func loopback(addresses []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	for i, text := range addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := addAlias(fd, fmt.Sprintf("lo:%d", i+1), addr); err != nil {
			return fmt.Errorf("add %s: %w", addr, err)
		}
	}
	return nil
}

func addAlias(fd int, name string, addr netip.Addr) error {
	ip := addr.As4()
	for _, step := range []struct {
		request uint
		value   []byte
	}{{unix.SIOCSIFADDR, ip[:]}, {unix.SIOCSIFNETMASK, []byte{255, 255, 255, 255}}} {
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := req.SetInet4Addr(step.value); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, step.request, req); err != nil {
			return err
		}
	}
	return nil
}

// Forward accepts connections on l and carries each to target, dialed inside the
// network namespace at netns, until ctx ends.
func Forward(ctx context.Context, l net.Listener, netns, target string) error {
	return relay(ctx, l, func(ctx context.Context) (net.Conn, error) { return dialIn(ctx, netns, target) })
}

// dialer makes the far half of a connection.
type dialer func(ctx context.Context) (net.Conn, error)

func relay(ctx context.Context, l net.Listener, dial dialer) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil // The listener was closed on purpose.
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		conns.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			carry(ctx, c, dial)
		})
	}
}

func carry(ctx context.Context, client net.Conn, dial dialer) {
	defer func() { _ = client.Close() }()
	server, err := dial(ctx)
	if err != nil {
		return // The client sees its connection closed, as with a server that is not there.
	}
	defer func() { _ = server.Close() }()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client)
		closeWrite(server)
	})
	_, _ = io.Copy(client, server)
	closeWrite(client)
	up.Wait()
}

func closeWrite(c net.Conn) {
	if half, ok := c.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}

// dialIn dials target, a literal IPv4 address, inside another network namespace.
func dialIn(ctx context.Context, netns, target string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlocked: the thread ends with its goroutine, so no other goroutine
		// can come to run in the foreign namespace.
		runtime.LockOSThread()
		if err := setns(netns, unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		// With a literal address and no fallback, Dial makes the socket on this thread.
		d := net.Dialer{Timeout: 5 * time.Second, FallbackDelay: -1}
		conn, err := d.DialContext(ctx, "tcp4", target)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func setns(file string, kind int) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	err = unix.Setns(int(f.Fd()), kind)
	return errors.Join(err, f.Close())
}
