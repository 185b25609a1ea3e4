package httpapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// nodeGroup is GET /node_group: the tree, or with kind= and name= the elements
// that match.
func (s *Server) nodeGroup(w http.ResponseWriter, r *http.Request) {
	now := s.current(w)
	if now == nil {
		return
	}
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		if kind, name := q.Get("kind"), q.Get("name"); kind != "" || name != "" {
			s.selected(w, r, now.Tree.Select(kind, name))
			return
		}
	}
	packed, fresh := negotiate(w, r, now.Tree.ETag(), jsonType)
	if !fresh {
		return
	}
	if packed {
		d, err := now.TreeDocument()
		if err != nil {
			s.failed(w, r, err)
			return
		}
		send(w, r, d.Gzip)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(now.Tree.Len()))
	if r.Method == http.MethodHead {
		return
	}
	out := s.writers.take(w)
	defer s.writers.give(out)
	_, _ = now.Tree.WriteTo(out) // An error means that the client is gone.
}

// selected answers with some elements. Their tag is made for each request: there
// are too many choices to keep.
func (s *Server) selected(w http.ResponseWriter, r *http.Request, list []*fabric.Element) {
	var b bytes.Buffer
	if err := fabric.WriteElements(&b, list); err != nil {
		s.failed(w, r, err)
		return
	}
	s.answer(w, r, jsonType, b.Bytes())
}

// topology is GET /v1/topology.
func (s *Server) topology(w http.ResponseWriter, r *http.Request) {
	if now := s.current(w); now != nil {
		d, err := now.TopologyDocument()
		s.document(w, r, now, d, err)
	}
}

// gangs is GET /v1/gangs: all of them, or with namespace= and state= those that
// match.
func (s *Server) gangs(w http.ResponseWriter, r *http.Request) {
	now := s.current(w)
	if now == nil {
		return
	}
	q := r.URL.Query()
	namespace, state := q.Get("namespace"), gang.Phase(q.Get("state"))
	if state != "" && !slices.Contains(gang.Phases(), state) {
		names := make([]string, 0, len(gang.Phases()))
		for _, p := range gang.Phases() {
			names = append(names, string(p))
		}
		http.Error(w, "the states are "+strings.Join(names, ", "), http.StatusBadRequest)
		return
	}
	if namespace != "" || state != "" {
		s.encode(w, r, now.SelectGangs(namespace, state))
		return
	}
	d, err := now.GangDocument()
	s.document(w, r, now, d, err)
}

// node is GET /v1/nodes/{name}.
func (s *Server) node(w http.ResponseWriter, r *http.Request) {
	now := s.current(w)
	if now == nil {
		return
	}
	n, ok := now.Node(r.PathValue("name"), time.Now())
	if !ok {
		http.Error(w, "there is no such node", http.StatusNotFound)
		return
	}
	s.encode(w, r, n)
}

// list is Kubernetes' List: kubectl apply takes it.
type list struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      any    `json:"items"`
}

// export is GET /v1/export/{format}: the tree in the format of another project.
func (s *Server) export(w http.ResponseWriter, r *http.Request) {
	now := s.current(w)
	if now == nil {
		return
	}
	tiers := export.TiersOf(now.Levels, now.Tree)
	var items any
	var err error
	switch r.PathValue("format") {
	case export.FormatSlurmTree:
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmTree(b, now.Tree) })
		return
	case export.FormatSlurmBlock:
		kind := r.URL.Query().Get("kind")
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmBlock(b, now.Tree, tiers, kind) })
		return
	case export.FormatHyperNodes:
		items, err = export.HyperNodes(now.Tree, tiers, true)
	case export.FormatKueue:
		var item export.Object
		item, err = export.KueueTopology(export.KueueVersion, tiers, s.options.Templates[0])
		items = []export.Object{item}
	case export.FormatNodes:
		items = export.LabeledNodes(now.Tree, tiers, s.options.Templates)
	default:
		http.Error(w, "the formats are slurm-tree, slurm-block, hypernodes, kueue-topology and node-labels",
			http.StatusNotFound)
		return
	}
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.encode(w, r, list{"v1", "List", items})
}

// text answers with plain text. An error is the request's fault.
func (s *Server) text(w http.ResponseWriter, r *http.Request, write func(*bytes.Buffer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.answer(w, r, "text/plain; charset=utf-8", b.Bytes())
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

// answer sends a body that is made for this request.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	packed, fresh := negotiate(w, r, tagOf(body), contentType)
	if !fresh {
		return
	}
	if packed {
		var zipped bytes.Buffer
		if err := compress(&zipped, body, gzip.BestSpeed); err != nil {
			s.failed(w, r, err)
			return
		}
		body = zipped.Bytes()
	}
	send(w, r, body)
}

// document answers with what is compressed already.
func (s *Server) document(
	w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot, d *snapshot.Document, err error,
) {
	if err != nil {
		s.failed(w, r, err)
		return
	}
	w.Header().Set("Heddle-Generation", strconv.FormatUint(now.Generation, 10))
	packed, fresh := negotiate(w, r, d.Tag, jsonType)
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
	_, _ = io.Copy(w, z) //nolint:gosec // It was compressed here, and its size is known.
}

// failed answers what no client can help.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	s.options.Log.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "err", err)
	for _, key := range []string{"ETag", "Content-Encoding", "Content-Length"} {
		w.Header().Del(key)
	}
	http.Error(w, "internal error", http.StatusInternalServerError)
}
