package apiserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
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
	if q.Get("resourceVersion") != "" && q.Get("resourceVersion") != "0" && q.Get("sendInitialEvents") == "" &&
		q.Get("resourceVersion") != strconv.FormatInt(s.version, 10) {
		// There is no history: the client lists again.
		s.mu.Unlock()
		fail(w, http.StatusGone, "Expired", "too old resource version")
		return
	}
	to := &watcher{events: make(chan []byte, backlog), match: matcher(r)}
	var first [][]byte
	if q.Get("sendInitialEvents") == "true" {
		for _, o := range k.objects {
			if to.match(o) {
				first = append(first, o.json)
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
	flush, _ := w.(http.Flusher)
	var line bytes.Buffer
	send := func(kind string, body []byte) bool {
		line.Reset()
		line.WriteString(`{"type":"` + kind + `","object":`)
		line.Write(body)
		line.WriteString("}\n")
		_, err := w.Write(line.Bytes())
		return err == nil
	}
	for _, body := range first {
		if !send("ADDED", body) {
			return
		}
	}
	if q.Get("sendInitialEvents") == "true" && !send("BOOKMARK", k.bookmark(version, true)) {
		return
	}
	flush.Flush()
	beat := time.NewTicker(time.Minute)
	defer beat.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			s.mu.Lock()
			version = s.version
			s.mu.Unlock()
			if !send("BOOKMARK", k.bookmark(version, false)) {
				return
			}
		case event, ok := <-to.events:
			if !ok {
				return
			}
			if _, err := w.Write(event); err != nil {
				return
			}
		}
		if len(to.events) == 0 {
			flush.Flush()
		}
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

// tell sends a change to all watches: old and new are nil where there is none.
func (k *kind) tell(old, now *stored) {
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
	k.tell(old, now)
	return now
}

func (s *Server) remove(k *kind, key string) bool {
	old := k.objects[key]
	if old == nil {
		return false
	}
	delete(k.objects, key)
	s.version++
	k.tell(old, nil)
	return true
}
