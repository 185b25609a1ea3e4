package apiserver

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// watcher is one watch. Events wait in a channel; a client that lets it fill
// up is cut off, as the real one does.
type watcher struct {
	events chan []byte
	match  func(*stored) bool
}

// backlog is how many events may wait.
const backlog = 1 << 16

// watch streams events until the client goes away. It is called with the lock
// held and gives it back.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k *kind) {
	q := r.URL.Query()
	if from := q.Get("resourceVersion"); from != "" && from != "0" && q.Get("sendInitialEvents") == "" &&
		from != strconv.FormatInt(s.version, 10) {
		// The server keeps no history: the client lists again.
		s.mu.Unlock()
		fail(w, http.StatusGone, "Expired", "too old resource version")
		return
	}
	to := &watcher{events: make(chan []byte, backlog), match: matcher(r)}
	out := &stream{w: w}
	if flusher, ok := w.(http.Flusher); ok {
		out.flusher = flusher
	}
	var first []*stored
	if q.Get("sendInitialEvents") == "true" {
		for _, o := range k.objects {
			if to.match(o) {
				first = append(first, o)
			}
		}
	}
	version := s.version
	k.watchers[to] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		k.drop(to)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	for _, o := range first {
		out.send("ADDED", o.json)
	}
	if q.Get("sendInitialEvents") == "true" {
		out.send("BOOKMARK", k.bookmark(version, true))
	}
	out.flush()
	s.follow(r, k, to, out)
}

// follow sends what happens.
func (s *Server) follow(r *http.Request, k *kind, to *watcher, out *stream) {
	beat := time.NewTicker(time.Minute)
	defer beat.Stop()
	for out.err == nil {
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			s.mu.Lock()
			version := s.version
			s.mu.Unlock()
			out.send("BOOKMARK", k.bookmark(version, false))
		case event, ok := <-to.events:
			if !ok {
				return
			}
			out.write(event)
		}
		if len(to.events) == 0 {
			out.flush()
		}
	}
}

// stream is a watch's connection; after an error it does nothing.
type stream struct {
	w       http.ResponseWriter
	flusher http.Flusher
	err     error
}

func (s *stream) send(kind string, body []byte) {
	s.write(slices.Concat([]byte(`{"type":"`+kind+`","object":`), body, []byte("}\n")))
}

func (s *stream) write(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
}

func (s *stream) flush() {
	if s.flusher != nil {
		s.flusher.Flush()
	}
}

func (k *kind) bookmark(version int64, end bool) []byte {
	about := object{"resourceVersion": strconv.FormatInt(version, 10)}
	if end {
		about["annotations"] = object{"k8s.io/initial-events-end": "true"}
	}
	return encode(object{"kind": k.Name, "apiVersion": k.APIVersion, "metadata": about})
}

// drop ends a watch.
func (k *kind) drop(w *watcher) {
	if k.watchers[w] {
		delete(k.watchers, w)
		close(w.events)
	}
}

// notify sends a change to all watches: old and new may be nil.
func (k *kind) notify(old, now *stored) {
	for w := range k.watchers {
		was, is := old != nil && w.match(old), now != nil && w.match(now)
		kind, body := "", json.RawMessage(nil)
		switch {
		case is && was:
			kind, body = "MODIFIED", now.json
		case is:
			kind, body = "ADDED", now.json
		case was && now != nil:
			kind, body = "DELETED", now.json
		case was:
			kind, body = "DELETED", old.json
		default:
			continue
		}
		select {
		case w.events <- append(encode(object{"type": kind, "object": body}), '\n'):
		default:
			k.drop(w)
		}
	}
}

// store keeps an object, with a new version if anything changed.
func (s *Server) store(k *kind, o object) *stored {
	old := k.objects[keyOf(o)]
	about := meta(o)
	o["kind"], o["apiVersion"] = k.Name, k.APIVersion
	generation := 1.0
	if old != nil {
		before := old.value()
		was := meta(before)
		about["uid"], about["resourceVersion"], about["generation"] = was["uid"], was["resourceVersion"], was["generation"]
		if reflect.DeepEqual(o, before) {
			return old
		}
		if n, ok := was["generation"].(float64); ok {
			generation = n
		}
		if !reflect.DeepEqual(o["spec"], before["spec"]) {
			generation++
		}
	}
	if text(about["uid"]) == "" {
		s.serial++
		about["uid"] = "00000000-0000-4000-8000-" + strconv.FormatInt(int64(1e11)+int64(s.serial), 10)
	}
	s.version++
	about["resourceVersion"], about["generation"] = strconv.FormatInt(s.version, 10), generation
	now := &stored{encode(o)}
	k.objects[keyOf(o)] = now
	k.notify(old, now)
	return now
}

func (s *Server) remove(k *kind, key string) bool {
	old := k.objects[key]
	if old == nil {
		return false
	}
	delete(k.objects, key)
	s.version++
	k.notify(old, nil)
	return true
}
