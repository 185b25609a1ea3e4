package server

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/internal/notify"
)

// server answers the kubelet on one socket.
type server struct {
	v1beta1.UnimplementedDevicePluginServer
	name     string
	resource Resource
	options  *v1beta1.DevicePluginOptions
	list     *advertised
	metrics  *metrics
	log      *slog.Logger

	traffic *traffic
	// ending is closed when streams shall end.
	ending chan struct{}
	// changed is set when a stream has sent its first list, and when it ends.
	changed notify.Signal
}

func (s *server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return s.options, nil
}

// ListAndWatch sends the whole list first, then whenever it differs. It ends
// with its stream, or when the server stops.
func (s *server) ListAndWatch(
	_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse],
) error {
	id := s.list.join()
	defer func() {
		s.list.leave(id)
		s.changed.Notify()
	}()
	for first := true; ; first = false {
		now := s.list.current()
		if err := stream.Send(listOf(now.devices)); err != nil {
			return fmt.Errorf("send devices: %w", err)
		}
		s.list.sent(id, now.generation)
		if first {
			s.changed.Notify()
		} else {
			s.metrics.updates.Observe(time.Since(now.since).Seconds())
		}
		select {
		case <-now.next:
		case <-s.ending:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// listOf returns the message of a list. It is made for every stream, and not kept: it
// takes more memory than the list.
func listOf(devices []Device) *v1beta1.ListAndWatchResponse {
	resp := &v1beta1.ListAndWatchResponse{Devices: make([]*v1beta1.Device, 0, len(devices))}
	for i := range devices {
		d := &v1beta1.Device{ID: devices[i].ID, Health: v1beta1.Unhealthy}
		if devices[i].Healthy {
			d.Health = v1beta1.Healthy
		}
		for _, id := range devices[i].NUMA {
			d.Topology = &v1beta1.TopologyInfo{Nodes: append(d.GetTopology().GetNodes(), &v1beta1.NUMANode{ID: id})}
		}
		resp.Devices = append(resp.Devices, d)
	}
	return resp
}

// GetPreferredAllocation never fails: its error would fail the pod
// (manager.go, callGetPreferredAllocationIfAvailable), and an answer without
// IDs makes the kubelet choose.
func (s *server) GetPreferredAllocation(
	ctx context.Context, req *v1beta1.PreferredAllocationRequest,
) (*v1beta1.PreferredAllocationResponse, error) {
	resp := &v1beta1.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		ids, err := s.prefer(c)
		if err != nil {
			s.metrics.preferFaults.Inc()
			s.log.WarnContext(ctx, "no preferred allocation, the kubelet chooses", "err", err,
				"available", len(c.GetAvailableDeviceIDs()), "size", c.GetAllocationSize())
			ids = nil
		}
		resp.ContainerResponses = append(resp.ContainerResponses,
			&v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return resp, nil
}

func (s *server) prefer(c *v1beta1.ContainerPreferredAllocationRequest) (ids []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("prefer: panic: %v\n%s", r, debug.Stack())
		}
	}()
	return s.resource.Prefer(c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
}

// Allocate rejects IDs that were never in the list: a kubelet asks for such only
// if another plugin's list reached it for the same resource.
func (s *server) Allocate(ctx context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	resp := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		answer, err := s.allocate(ctx, c.GetDevicesIds())
		if err != nil {
			return nil, err
		}
		resp.ContainerResponses = append(resp.ContainerResponses, answer)
	}
	return resp, nil
}

func (s *server) allocate(ctx context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if err := s.list.begin(s.name, ids); err != nil {
		return nil, err
	}
	defer s.list.end(ids)
	answer, err := s.resource.Allocate(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("allocate %s: %w", s.name, err)
	}
	if answer == nil {
		// gRPC cannot encode a nil element.
		answer = &v1beta1.ContainerAllocateResponse{}
	}
	return answer, nil
}

func (s *server) PreStartContainer(
	ctx context.Context, req *v1beta1.PreStartContainerRequest,
) (*v1beta1.PreStartContainerResponse, error) {
	if err := s.resource.PreStart(ctx, req.GetDevicesIds()); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", s.name, err)
	}
	return &v1beta1.PreStartContainerResponse{}, nil
}

// intercept counts and times a call, and turns a panic into its error: the
// other containers of the node need this process.
func (s *server) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (resp any, err error) {
	start := time.Now()
	method := path.Base(info.FullMethod)
	defer func() {
		if r := recover(); r != nil {
			err = status.Errorf(codes.Internal, "%s %s: panic: %v", s.name, method, r)
			s.log.ErrorContext(ctx, "call panicked", "method", method, "err", err, "stack", string(debug.Stack()))
		}
		s.metrics.rpc.WithLabelValues(method, status.Code(err).String()).Observe(time.Since(start).Seconds())
	}()
	resp, err = handler(ctx, req)
	if err != nil {
		s.log.WarnContext(ctx, "call rejected", "method", method, "err", err)
	}
	return resp, err
}

// traffic counts the calls and streams of one server. A call counts until its
// answer is on the wire, which an interceptor cannot see.
type traffic struct {
	mu      sync.Mutex
	calls   int
	streams int
	// changed is set when streams did. Calls leave it alone: what supervises the
	// registration would run beside every Allocate.
	changed notify.Signal
	// quiet is closed, and replaced, when the last call has ended.
	quiet chan struct{}
}

type streamKey struct{}

// TagRPC implements stats.Handler.
func (t *traffic) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, streamKey{}, path.Base(info.FullMethodName) == "ListAndWatch")
}

// HandleRPC implements stats.Handler.
func (t *traffic) HandleRPC(ctx context.Context, s stats.RPCStats) {
	by := 0
	switch s.(type) {
	case *stats.Begin:
		by = 1
	case *stats.End:
		by = -1
	default:
		return
	}
	stream, _ := ctx.Value(streamKey{}).(bool)
	t.mu.Lock()
	defer t.mu.Unlock()
	if stream {
		t.streams += by
		t.changed.Notify()
		return
	}
	if t.calls += by; t.calls == 0 {
		close(t.quiet)
		t.quiet = make(chan struct{})
	}
}

// TagConn implements stats.Handler.
func (t *traffic) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (t *traffic) HandleConn(context.Context, stats.ConnStats) {}

// streaming reports how many streams are open.
func (t *traffic) streaming() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams
}

// idle waits until no call is in flight, or ctx ends.
func (t *traffic) idle(ctx context.Context) {
	for {
		t.mu.Lock()
		calls, quiet := t.calls, t.quiet
		t.mu.Unlock()
		if calls == 0 {
			return
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return
		}
	}
}
