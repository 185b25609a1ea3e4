package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

// fleet is a server for 16,384 nodes.
func fleet(b *testing.B) http.Handler {
	b.Helper()
	f := newFixture(b, fabric.ModeAuto)
	nodes := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16384, 32), Rails: 8, Pod: 16}).Nodes
	states := map[string]*informers.NodeState{}
	for i := range nodes {
		name := nodes[i].Name
		f.tree.Put(fabric.Node{Name: name, Ready: true, Report: fabric.Read(&nodes[i].Spec)})
		states[name] = &informers.NodeState{Name: name, Node: &informers.Node{Name: name, Ready: true, GPUs: 8}}
	}
	f.now.Nodes = f.now.Nodes.With(states)
	f.put("")
	return newServer(f).Handler()
}

// discard drops an answer.
type discard struct{ header http.Header }

func (n discard) Header() http.Header         { return n.header }
func (n discard) Write(b []byte) (int, error) { return len(b), nil }
func (n discard) WriteHeader(int)             {}

func answerTo(b *testing.B, path string, headers ...string) {
	b.Helper()
	h := fleet(b)
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	h.ServeHTTP(discard{http.Header{}}, r) // What is made once is made now.
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(discard{http.Header{}}, r)
	}
}

func BenchmarkNotModified(b *testing.B) { answerTo(b, "/node_group", "If-None-Match", "*") }
