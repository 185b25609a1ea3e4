//go:build linux

package nodens

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Endpoints lists the ready endpoints of a Service now, each as address:port.
type Endpoints func(ctx context.Context) ([]string, error)

// ListenService takes a Service's address: it gives it to the loopback interface
// of the network namespace that it runs in, and listens there. This is what
// kube-proxy does in kernel tables, which need tools that a bare machine lacks.
func ListenService(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// An alias is known by its label: one for each address.
	if err := addAlias(fd, fmt.Sprintf("lo:%x", at.Addr().AsSlice()), at.Addr()); err != nil {
		return nil, fmt.Errorf("add %s: %w", at.Addr(), err)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp4", at.String())
}

// Serve carries each connection on l to an endpoint, in turn, until ctx ends. It
// asks for the endpoints every time, so that it never knows a pod that is gone.
func Serve(ctx context.Context, l net.Listener, endpoints Endpoints) error {
	var next atomic.Uint64
	return relay(ctx, l, func(ctx context.Context) (net.Conn, error) {
		all, err := endpoints(ctx)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("no ready endpoint of %s", l.Addr())
		}
		d := net.Dialer{Timeout: 5 * time.Second}
		return d.DialContext(ctx, "tcp4", all[next.Add(1)%uint64(len(all))])
	})
}
