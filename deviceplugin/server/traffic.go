package server

import (
	"context"
	"path"
	"sync"

	"google.golang.org/grpc/stats"

	"github.com/heddle-dev/heddle/internal/notify"
)

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

func newTraffic() *traffic {
	return &traffic{changed: notify.New(), quiet: make(chan struct{})}
}

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

func (t *traffic) inFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls
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
