package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// nodeGroup is GET /node_group: the tree, or with kind= and name= the elements
// that match.
func (s *Server) nodeGroup(w http.ResponseWriter, r *http.Request) {
	v := s.current(w)
	if v == nil {
		return
	}
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		if kind, name := q.Get("kind"), q.Get("name"); kind != "" || name != "" {
			s.selected(w, r, v.Tree.Select(kind, name))
			return
		}
	}
	packed, fresh := negotiate(w, r, v.Tree.ETag(), jsonType)
	if !fresh {
		return
	}
	if packed {
		body, err := v.Tree.Gzip()
		if err != nil {
			s.failed(w, r, err)
			return
		}
		send(w, r, body)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(v.Tree.Len()))
	if r.Method == http.MethodHead {
		return
	}
	out := s.buffers.writer(w)
	defer s.buffers.giveWriter(out)
	if _, err := v.Tree.WriteTo(out); err == nil {
		_ = out.Flush() // A client that went away is no concern.
	}
}

// selected answers with some elements. Their tag is made for each request:
// there are too many choices to keep.
func (s *Server) selected(w http.ResponseWriter, r *http.Request, list []*fabric.Element) {
	buffer := s.buffers.take()
	defer s.buffers.give(buffer)
	if err := fabric.WriteElements(buffer, list); err != nil {
		s.failed(w, r, err)
		return
	}
	s.answer(w, r, jsonType, buffer.Bytes())
}

// answer sends a body that was made for this request.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	sum := sha256.Sum256(body)
	packed, fresh := negotiate(w, r, `"`+hex.EncodeToString(sum[:16])+`"`, contentType)
	if !fresh {
		return
	}
	if !packed {
		send(w, r, body)
		return
	}
	buffer := s.buffers.take()
	defer s.buffers.give(buffer)
	z, err := gzip.NewWriterLevel(buffer, gzip.BestSpeed)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	_, err = z.Write(body)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		s.failed(w, r, err)
		return
	}
	send(w, r, buffer.Bytes())
}

// topology is GET /v1/topology.
func (s *Server) topology(w http.ResponseWriter, r *http.Request) {
	v := s.current(w)
	if v == nil {
		return
	}
	d, err := v.Document()
	s.document(w, r, v, d, err)
}

// document answers with what is compressed already.
func (s *Server) document(w http.ResponseWriter, r *http.Request, v *snapshot.Snapshot, d *snapshot.Document, err error) {
	if err != nil {
		s.failed(w, r, err)
		return
	}
	w.Header().Set("Heddle-Generation", strconv.FormatUint(v.Generation, 10))
	packed, fresh := negotiate(w, r, `"`+d.Tag+`"`, jsonType)
	if !fresh {
		return
	}
	if packed {
		send(w, r, d.Gzip)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(d.Size, 10))
	if r.Method == http.MethodHead {
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(d.Gzip))
	if err != nil {
		s.failed(w, r, err)
		return
	}
	_, _ = io.Copy(w, z) //nolint:gosec // It is our own, and of known size; who went away is no concern.
}

// node is GET /v1/nodes/{name}.
func (s *Server) node(w http.ResponseWriter, r *http.Request) {
	v := s.current(w)
	if v == nil {
		return
	}
	n, ok := v.Node(r.PathValue("name"), time.Now())
	if !ok {
		http.Error(w, "there is no such node", http.StatusNotFound)
		return
	}
	s.encode(w, r, n)
}

// encode answers with a value.
func (s *Server) encode(w http.ResponseWriter, r *http.Request, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.answer(w, r, jsonType, append(body, '\n'))
}

// failed answers what no client can help.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	s.options.Log.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "err", err)
	for _, key := range []string{"ETag", "Content-Encoding", "Content-Length"} {
		w.Header().Del(key)
	}
	http.Error(w, "internal error", http.StatusInternalServerError)
}

// event is what /v1/watch sends.
type event struct {
	Generation uint64         `json:"generation"`
	ETag       string         `json:"etag"`
	Nodes      snapshot.Count `json:"nodes"`
	// StaleSince is as in view.Topology.
	StaleSince time.Time `json:"staleSince,omitzero"`
}
