package apiserver

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watcher is one watch. Events wait in a channel; a client that lets it fill up is cut off, as the real one does.
type watcher struct {
	events chan []byte
	match  func([]byte) bool
}

const (
	// backlog is how many events may wait.
	backlog = 1 << 16
	// beat is the interval of bookmarks.
	beat = time.Minute
)

// watch streams events until the client goes away.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	k, _, err := s.find("WATCH", r)
	from := q.Get("resourceVersion")
	if err == nil && !initial && from != "" && from != "0" && from != strconv.FormatInt(s.version, 10) {
		// The server keeps no history: the client lists again.
		err = apierrors.NewResourceExpired("too old resource version")
	}
	if err != nil {
		s.mu.Unlock()
		fail(w, err)
		return
	}
	to := &watcher{events: make(chan []byte, backlog), match: matcher(r)}
	k.watchers[to] = true
	var first [][]byte
	for _, o := range k.objects {
		if initial && to.match(o) {
			first = append(first, o)
		}
	}
	end := s.bookmark(k, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		k.drop(to)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	for _, o := range first {
		_ = send(w, event(watch.Added, o)) // A client that is gone ends the context.
	}
	if initial {
		_ = send(w, end)
	}
	_ = http.NewResponseController(w).Flush()
	s.follow(w, r, k, to)
}

// follow sends what happens.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, k *kind, to *watcher) {
	ticks := time.NewTicker(beat)
	defer ticks.Stop()
	for {
		var next []byte
		var ok bool
		select {
		case <-r.Context().Done():
			return
		case <-ticks.C:
			s.mu.Lock()
			next = s.bookmark(k, nil)
			s.mu.Unlock()
		case next, ok = <-to.events:
			if !ok {
				return
			}
		}
		if send(w, next) != nil {
			return
		}
		if len(to.events) == 0 {
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func event(kind watch.EventType, object []byte) []byte {
	return slices.Concat([]byte(`{"type":"`+string(kind)+`","object":`), object, []byte("}\n"))
}

func (s *Server) bookmark(k *kind, annotations map[string]string) []byte {
	return event(watch.Bookmark, encode(&metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{Kind: k.Name, APIVersion: k.APIVersion},
		ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.FormatInt(s.version, 10), Annotations: annotations,
		},
	}))
}

// drop ends a watch.
func (k *kind) drop(w *watcher) {
	if k.watchers[w] {
		delete(k.watchers, w)
		close(w.events)
	}
}

// notify sends a change to all watches: old and now may be nil.
func (k *kind) notify(old, now []byte) {
	for w := range k.watchers {
		was, is := old != nil && w.match(old), now != nil && w.match(now)
		next := event(watch.Deleted, old)
		switch {
		case is && was:
			next = event(watch.Modified, now)
		case is:
			next = event(watch.Added, now)
		case !was:
			continue
		case now != nil:
			next = event(watch.Deleted, now)
		}
		select {
		case w.events <- next:
		default:
			k.drop(w)
		}
	}
}
