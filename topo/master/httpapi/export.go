package httpapi

import (
	"bytes"
	"net/http"

	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// list is Kubernetes' List: kubectl apply takes it.
type list struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      any    `json:"items"`
}

// labeled is a Node with our labels only.
type labeled struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
}

// export is GET /v1/export/{format}: the tree in another project's words.
func (s *Server) export(w http.ResponseWriter, r *http.Request) {
	v := s.current(w)
	if v == nil {
		return
	}
	tiers := export.TiersOf(v.Levels, v.Tree)
	switch r.PathValue("format") {
	case export.FormatSlurmTree:
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmTree(b, v.Tree) })
	case export.FormatSlurmBlock:
		kind := r.URL.Query().Get("kind")
		s.text(w, r, func(b *bytes.Buffer) error { return export.SlurmBlock(b, v.Tree, tiers, kind) })
	case export.FormatHyperNodes:
		items, err := export.HyperNodes(v.Tree, tiers, true)
		s.items(w, r, items, err)
	case export.FormatKueue:
		item, err := export.KueueTopology(export.KueueVersion, tiers, s.options.Templates[0])
		s.items(w, r, []export.Object{item}, err)
	case export.FormatNodes:
		s.items(w, r, s.labels(v, tiers), nil)
	default:
		http.Error(w, "the formats are slurm-tree, slurm-block, hypernodes, kueue-topology and node-labels",
			http.StatusNotFound)
	}
}

func (s *Server) labels(v *snapshot.Snapshot, tiers export.Tiers) []labeled {
	out := []labeled{}
	for name, labels := range export.NewLabeler(tiers, s.options.Templates).All(v.Tree) {
		if len(labels) == 0 {
			continue
		}
		n := labeled{APIVersion: "v1", Kind: "Node"}
		n.Metadata.Name, n.Metadata.Labels = name, labels
		out = append(out, n)
	}
	return out
}

func (s *Server) items(w http.ResponseWriter, r *http.Request, items any, err error) {
	if err != nil {
		s.failed(w, r, err)
		return
	}
	s.encode(w, r, list{"v1", "List", items})
}

// text answers with plain text; what goes wrong is the question's fault.
func (s *Server) text(w http.ResponseWriter, r *http.Request, write func(*bytes.Buffer) error) {
	b := s.buffers.take()
	defer s.buffers.give(b)
	if err := write(b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.answer(w, r, "text/plain; charset=utf-8", b.Bytes())
}
