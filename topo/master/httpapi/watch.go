package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
)

const (
	// maxWatchers bounds the readers of /v1/watch.
	maxWatchers = 256
	// pace is the least time between two events of one reader: a burst of changes becomes one
	// event.
	pace = 250 * time.Millisecond
	// patience is the time that a reader may take for an event; a slower reader is dropped.
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
	if err := s.stream(r.Context(), w); err != nil && r.Context().Err() == nil {
		s.metrics.dropped.Inc()
		s.options.Log.DebugContext(r.Context(), "watch reader dropped", "err", err)
	}
}

// stream sends until the reader goes away (nil) or cannot follow.
func (s *Server) stream(ctx context.Context, w http.ResponseWriter) error {
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	// The server's read timeout would end the request's context.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("clear the read deadline: %w", err)
	}
	if err := sendEvent(w, ": heddle-topo-master\n\n"); err != nil {
		return err
	}
	sent := uint64(0)
	for {
		v, next := s.options.Latest.Get()
		if v != nil && v.Generation != sent {
			data, err := json.Marshal(event{v.Generation, v.Tree.ETag(), v.Tree.Nodes, v.StaleSince})
			if err != nil {
				return fmt.Errorf("encode an event: %w", err)
			}
			if err := sendEvent(w, fmt.Sprintf("event: generation\nid: %d\ndata: %s\n\n", v.Generation, data)); err != nil {
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
			if err := sendEvent(w, ": still here\n\n"); err != nil {
				return err
			}
		}
	}
}

// event is an event of /v1/watch.
type event struct {
	Generation uint64       `json:"generation"`
	ETag       string       `json:"etag"`
	Nodes      fabric.Count `json:"nodes"`
	// StaleSince is as in snapshot.Topology.
	StaleSince time.Time `json:"staleSince,omitzero"`
}

// sendEvent writes to a reader within its patience. HTTP/2 resets a stream after its deadline, also
// between two writes.
func sendEvent(w http.ResponseWriter, text string) error {
	control := http.NewResponseController(w)
	err := control.SetWriteDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = control.Flush()
	}
	if err == nil {
		err = control.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	return nil
}
