package server

import (
	"context"
	"path"
	"sync"

	"google.golang.org/grpc/stats"
)

// traffic counts the calls and streams of one server. A call counts until its
// answer is on the wire, which an interceptor cannot see.
type traffic struct {
	mu      sync.Mutex
	calls   int
	streams int
	// note is closed, and replaced, when either changes.
	note chan struct{}
}

type streamKey struct{}

func newTraffic() *traffic { return &traffic{note: make(chan struct{})} }

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
	} else {
		t.calls += by
	}
	close(t.note)
	t.note = make(chan struct{})
}

// TagConn implements stats.Handler.
func (t *traffic) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (t *traffic) HandleConn(context.Context, stats.ConnStats) {}

// streaming reports how many streams are open; note is closed when that changes.
func (t *traffic) streaming() (n int, note <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams, t.note
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
		calls, note := t.calls, t.note
		t.mu.Unlock()
		if calls == 0 {
			return
		}
		select {
		case <-note:
		case <-ctx.Done():
			return
		}
	}
}
