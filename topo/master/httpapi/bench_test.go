package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// fleet is a server for 16,384 nodes.
func fleet(b *testing.B) http.Handler {
	b.Helper()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16384, 32), Rails: 8, Pod: 16})
	levels, err := fabric.Preset(fabric.ModeAuto, 0)
	if err != nil {
		b.Fatal(err)
	}
	m, err := fabric.New(fabric.Config{Levels: levels})
	if err != nil {
		b.Fatal(err)
	}
	s := &scene{next: make(chan struct{})}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		m.Put(fabric.Node{Name: n.Name, Ready: true, Report: &n.Spec})
		s.draft.Set(n.Name, snapshot.Detail{Node: &informers.Node{Name: n.Name, Ready: true, GPUs: 8}})
	}
	s.v = snapshot.New(snapshot.Snapshot{
		Generation: 1, Tree: m.Snapshot(time.Unix(1, 0)), Levels: levels, Nodes: s.draft.Table(), CountsPods: true,
	})
	return newServer(s).Handler()
}

// nobody reads an answer.
type nobody struct{ header http.Header }

func (n nobody) Header() http.Header         { return n.header }
func (n nobody) Write(b []byte) (int, error) { return len(b), nil }
func (n nobody) WriteHeader(int)             {}

func answerTo(b *testing.B, path string, headers ...string) {
	b.Helper()
	h := fleet(b)
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	h.ServeHTTP(nobody{http.Header{}}, r) // What is made once is made now.
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(nobody{http.Header{}}, r)
	}
}

func BenchmarkNotModified(b *testing.B) { answerTo(b, "/node_group", "If-None-Match", "*") }

func BenchmarkFullAnswer(b *testing.B) { answerTo(b, "/node_group") }

func BenchmarkFullAnswerGzip(b *testing.B) { answerTo(b, "/node_group", "Accept-Encoding", "gzip") }

func BenchmarkFilter(b *testing.B) { answerTo(b, "/node_group?name=node016000") }

func BenchmarkNode(b *testing.B) { answerTo(b, "/v1/nodes/node016000") }

// BenchmarkTopology is the first answer of each generation.
func BenchmarkTopology(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		h := fleet(b)
		b.StartTimer()
		h.ServeHTTP(nobody{http.Header{}}, httptest.NewRequest(http.MethodGet, "/v1/topology", http.NoBody))
	}
}
