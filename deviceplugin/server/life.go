package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// registerTimeout bounds Register, within which the kubelet connects to
	// the plugin and asks for its options; it gives itself 10 s for the first.
	registerTimeout = 15 * time.Second
	connectTimeout  = 2 * time.Second
	// stopGrace is what a canceled call gets to return.
	stopGrace = time.Second
	// identityTries bounds connecting while kubelet.sock is being replaced.
	identityTries = 3
)

var (
	errReplaced  = errors.New("kubelet.sock is being replaced")
	errNoKubelet = errors.New("the kubelet does not listen")
)

// life is one registration: a socket of its own, served until it is stopped.
type life struct {
	// kubelet is the kubelet.sock that took the registration.
	kubelet identity
	socket  string
	// intact tells whether the socket is still in the directory.
	intact func() bool
	// streams tells how many kubelets watch; note is closed when that changes.
	streams func() (n int, note <-chan struct{})
	// stop ends it; calls in flight go on until the context ends.
	stop func(ctx context.Context)
}

// open begins a life: it connects to the kubelet, serves, and registers. The
// connection comes first, so that an absent kubelet costs no socket.
func (p *Plugin) open(ctx context.Context) (*life, error) {
	conn, kubelet, err := connect(ctx, filepath.Join(p.dir, kubeletSocket))
	if err != nil {
		return nil, err
	}
	registry, err := clientOn(conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("registration client: %w", err)
	}
	defer func() { _ = registry.Close() }()
	l, err := p.serve(ctx)
	if err != nil {
		return nil, err
	}
	l.kubelet = kubelet
	calling, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(registry).Register(calling, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: filepath.Base(l.socket), ResourceName: p.options.Name, Options: p.promises(),
	})
	if err != nil {
		// The kubelet may have taken it all the same, and call already.
		l.drain(ctx)
		return nil, fmt.Errorf("register %s: %w", p.options.Name, err)
	}
	return l, nil
}

// drain stops a life, also after ctx, and lets calls end for a bounded time.
func (l *life) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	l.stop(ctx)
}

// connect connects to kubelet.sock and says which one it was: the same before
// and after, so that a kubelet which restarts meanwhile is told from the one
// that takes the registration.
func connect(ctx context.Context, path string) (net.Conn, identity, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for range identityTries {
		before, ok := identify(path)
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, identity{}, fmt.Errorf("%w: %w", errNoKubelet, err)
		}
		if after, still := identify(path); ok && still && before == after {
			return conn, before, nil
		}
		_ = conn.Close()
	}
	return nil, identity{}, errReplaced
}

// clientOn makes a client that uses one connection and never another.
func clientOn(conn net.Conn) (*grpc.ClientConn, error) {
	var once sync.Once
	return grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			var first net.Conn
			once.Do(func() { first = conn })
			if first == nil {
				return nil, errReplaced
			}
			return first, nil
		}))
}

// serve listens on a new socket.
func (p *Plugin) serve(ctx context.Context) (*life, error) {
	listener, err := listen(ctx, p.dir, p.options.Name)
	if err != nil {
		return nil, err
	}
	s := &server{
		name: p.options.Name, resource: p.options.Resource, options: p.promises(), ledger: p.ledger,
		metrics: p.metrics, log: p.log, traffic: newTraffic(), ending: make(chan struct{}),
		streamed: p.streamed,
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(s.intercept), grpc.StatsHandler(s.traffic))
	v1beta1.RegisterDevicePluginServer(g, s)
	var serving sync.WaitGroup
	var broken atomic.Bool
	serving.Go(func() {
		if err := g.Serve(listener); err != nil {
			broken.Store(true)
			p.log.Error("serving ended", "err", err)
		}
	})
	path := listener.Addr().String()
	made, known := identify(path)
	return &life{
		socket: path,
		intact: func() bool {
			now, ok := identify(path)
			return known && ok && now == made && !broken.Load()
		},
		streams: s.traffic.streaming,
		stop: func(ctx context.Context) {
			s.stop(ctx, g)
			serving.Wait()
		},
	}, nil
}

// stop drains the server. Calls come first: a kubelet whose stream ends closes
// the connection (plugin/v1beta1/client.go, Disconnect), and its calls in
// flight fail, Allocate's for good.
func (s *server) stop(ctx context.Context, g *grpc.Server) {
	s.traffic.idle(ctx)
	close(s.ending)
	graceful := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(graceful)
	}()
	select {
	case <-graceful:
		return
	case <-ctx.Done():
	}
	// Stop cancels the calls. One that ignores this cannot be waited for.
	g.Stop()
	select {
	case <-graceful:
	case <-time.After(stopGrace):
		s.log.Error("a call does not end though it is canceled", "calls", s.traffic.inFlight())
	}
}

// promises are the options of the kubelet's API.
func (p *Plugin) promises() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{
		PreStartRequired:                !p.options.SkipPreStart,
		GetPreferredAllocationAvailable: !p.options.SkipPrefer,
	}
}
