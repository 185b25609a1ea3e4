package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const (
	// maxWatchers is how many readers /v1/watch has at most.
	maxWatchers = 256
	// pace is the least time between two events of one reader: a burst of
	// changes is one.
	pace = 250 * time.Millisecond
	// patience is how long a reader may take for an event; one that takes
	// longer is dropped.
	patience = 10 * time.Second
	// keepAlive is the longest silence.
	keepAlive = 15 * time.Second
)

// watch is GET /v1/watch: an event for the current generation and for each
// that follows, newest only.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	select {
	case s.watchers <- struct{}{}:
		defer func() { <-s.watchers }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many readers", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return
	}
	s.metrics.watchers.Inc()
	defer s.metrics.watchers.Dec()
	stream := &stream{w: w, control: http.NewResponseController(w)}
	if err := s.stream(r.Context(), stream); err != nil && r.Context().Err() == nil {
		s.metrics.dropped.Inc()
		s.options.Log.DebugContext(r.Context(), "watch reader dropped", "err", err)
	}
}

// stream sends until the reader goes away (nil) or cannot follow.
func (s *Server) stream(ctx context.Context, to *stream) error {
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	if err := to.send(": heddle-topo-master\n\n"); err != nil {
		return err
	}
	sent := uint64(0)
	for {
		v, next := s.options.Latest.Get()
		if v != nil && v.Generation != sent {
			if err := to.event(v); err != nil {
				return err
			}
			sent = v.Generation
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pace):
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-alive.C:
			if err := to.send(": still here\n\n"); err != nil {
				return err
			}
		}
	}
}

// event is what /v1/watch sends.
type event struct {
	Generation uint64       `json:"generation"`
	ETag       string       `json:"etag"`
	Nodes      fabric.Count `json:"nodes"`
	// StaleSince is as in snapshot.Topology.
	StaleSince time.Time `json:"staleSince,omitzero"`
}

// stream is one reader.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (s *stream) event(v *snapshot.Snapshot) error {
	data, err := json.Marshal(event{v.Generation, v.Tree.ETag(), v.Tree.Nodes, v.StaleSince})
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	return s.send(fmt.Sprintf("event: generation\nid: %d\ndata: %s\n\n", v.Generation, data))
}

func (s *stream) send(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("bound a write: %w", err)
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	if err := s.control.Flush(); err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	// HTTP/2 resets a stream whose deadline passes, also between two writes.
	if err := s.control.SetWriteDeadline(time.Time{}); err != nil {
		return fmt.Errorf("bound a write: %w", err)
	}
	return nil
}
