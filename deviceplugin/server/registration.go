package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	// registerTimeout bounds Register, within which the kubelet connects to
	// the plugin and asks for its options; it gives itself 10 s for the first.
	registerTimeout = 15 * time.Second
	// stopGrace is the time that a canceled call has to return.
	stopGrace = time.Second
	// streamWorkers are goroutines that answer calls, and keep the stacks that calls need: one for
	// the kubelet's ListAndWatch, one for its other calls, which come one after another.
	streamWorkers = 2
)

var errNoKubelet = errors.New("the kubelet does not listen")

// registration is one registration with a kubelet and its socket, served until
// it is stopped.
type registration struct {
	// kubelet is the kubelet.sock that took it.
	kubelet identity
	socket  string
	// bound is the socket as it was made, zero if that is unknown.
	bound   identity
	server  *server
	grpc    *grpc.Server
	serving sync.WaitGroup
	broken  atomic.Bool
	// claimed: the kubelet calls for no container; see [Plugin.SetClaimed].
	claimed bool
}

// intact reports whether the socket is still in the directory and served.
func (r *registration) intact() bool {
	now, ok := identify(r.socket)
	return ok && now == r.bound && !r.broken.Load()
}

// open serves, and registers. A kubelet that is replaced meanwhile has another socket than the
// registration then names, which makes another registration.
func (p *Plugin) open(ctx context.Context) (*registration, error) {
	path := filepath.Join(p.dir, kubeletSocket)
	kubelet, _ := identify(path)
	if !alive(ctx, path) { // An absent kubelet costs no socket.
		return nil, errNoKubelet
	}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("registration client: %w", err)
	}
	defer func() { _ = conn.Close() }()
	r, err := p.serve(ctx)
	if err != nil {
		return nil, err
	}
	r.kubelet = kubelet
	calling, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(calling, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: filepath.Base(r.socket), ResourceName: p.options.Name, Options: r.server.options,
	})
	if err != nil {
		// The kubelet may have taken it all the same, and call already.
		r.stop(ctx)
		return nil, fmt.Errorf("register %s: %w", p.options.Name, err)
	}
	return r, nil
}

// serve listens on a new socket.
func (p *Plugin) serve(ctx context.Context) (*registration, error) {
	listener, err := listen(ctx, p.dir, p.options.Name)
	if err != nil {
		return nil, err
	}
	claimed := p.claimed.Load()
	calls := !p.options.CountedOnly && !claimed
	s := &server{
		name: p.options.Name, resource: p.options.Resource, list: p.list, metrics: p.metrics, log: p.log,
		traffic: &traffic{changed: notify.New(), quiet: make(chan struct{})},
		ending:  make(chan struct{}), changed: p.options.Changed,
		options: &v1beta1.DevicePluginOptions{
			PreStartRequired: calls, GetPreferredAllocationAvailable: calls,
		},
	}
	r := &registration{
		socket: listener.Addr().String(), server: s, claimed: claimed,
		grpc: grpc.NewServer(grpc.UnaryInterceptor(s.intercept), grpc.StatsHandler(s.traffic),
			grpc.NumStreamWorkers(streamWorkers)),
	}
	r.bound, _ = identify(r.socket)
	v1beta1.RegisterDevicePluginServer(r.grpc, s)
	r.serving.Go(func() {
		if err := r.grpc.Serve(listener); err != nil {
			r.broken.Store(true)
			p.log.Error("serving ended", "err", err)
		}
	})
	return r, nil
}

// stop ends the registration, also after ctx, and lets calls end for a bounded
// time. Calls come first: a kubelet with an ended stream closes the connection
// (plugin/v1beta1/client.go, Disconnect), and its calls in flight fail,
// Allocate's for good.
func (r *registration) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	defer r.serving.Wait()
	r.server.traffic.idle(ctx)
	close(r.server.ending)
	graceful := make(chan struct{})
	go func() {
		r.grpc.GracefulStop()
		close(graceful)
	}()
	select {
	case <-graceful:
		return
	case <-ctx.Done():
	}
	// Stop cancels the calls. One that ignores this cannot be waited for.
	r.grpc.Stop()
	select {
	case <-graceful:
	case <-time.After(stopGrace):
		r.server.log.Error("a canceled call does not end")
	}
}
