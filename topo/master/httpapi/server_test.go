package httpapi

import (
	"compress/gzip"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// fixture is a tree that the test changes.
type fixture struct {
	tree   *fabric.Builder
	now    snapshot.Snapshot
	latest *snapshot.Latest
}

func newFixture(tb testing.TB, mode fabric.Mode) *fixture {
	tb.Helper()
	levels := fabric.Preset(mode, 0)
	m := fabric.New(levels)
	return &fixture{tree: m, now: snapshot.Snapshot{Levels: levels}, latest: snapshot.NewLatest()}
}

// node adds a node to the next snapshot.
func (f *fixture) node(name string, spec *v1alpha1.NodeTopologySpec) {
	report := &informers.Report{Report: fabric.Read(spec), Name: name, Owner: "u"}
	f.tree.Put(fabric.Node{Name: name, Ready: true, Report: report.Report})
	n := &informers.NodeState{Name: name, Node: &informers.Node{Name: name, UID: "u", Ready: true, GPUs: 8}, Report: report}
	f.now.Nodes = f.now.Nodes.With(map[string]*informers.NodeState{name: n})
}

// put adds nodes of one dragonfly and publishes.
func (f *fixture) put(fly string, nodes ...string) {
	for _, name := range nodes {
		f.node(name, &v1alpha1.NodeTopologySpec{Path: []string{"switchbox-1", fly}, PathSource: v1alpha1.SourceStatic})
	}
	f.now.Generation++
	f.now.Mapped, f.now.Tree = f.now.Generation, f.tree.Snapshot(time.Unix(1, 0))
	f.latest.Set(new(f.now))
}

func newServer(f *fixture, change ...func(*Options)) *Server {
	o := Options{
		Latest: f.latest, Registry: prometheus.NewRegistry(),
		Alive: func() string { return "stuck" }, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

func ask(h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func unzip(t *testing.T, r io.Reader) string {
	t.Helper()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const (
	tree = `[{"name":"switchbox-1","kind":"switchbox","child":[{"name":"dragonfly-1","kind":"dragonfly","child":[{"name":"n1","kind":"node","status":"Ready"},{"name":"n2","kind":"node","status":"Ready"}],"status":"Ready"},{"name":"dragonfly-2","kind":"dragonfly","child":[{"name":"n3","kind":"node","status":"Ready"}],"status":"Ready"}],"status":"Ready"}]
`
	fly2 = `[{"name":"dragonfly-2","kind":"dragonfly","child":[{"name":"n3","kind":"node","status":"Ready"}],"status":"Ready"}]
`
)

func TestAnswers(t *testing.T) {
	f := newFixture(t, fabric.ModeSwitchbox)
	h := newServer(f).Handler()
	for _, path := range []string{"/node_group", "/v1/topology", "/v1/nodes/n1", "/v1/export/slurm"} {
		if w := ask(h, "GET", path); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s before the first snapshot: %d", path, w.Code)
		}
	}
	if w := ask(h, "GET", "/readyz"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("ready before the first snapshot: %d", w.Code)
	}
	f.put("dragonfly-1", "n1", "n2")
	f.put("dragonfly-2", "n3")
	for _, tt := range []struct {
		name, method, target string
		code                 int
		contentType, body    string // body "…" is any
	}{
		{"the tree", "GET", "/node_group", 200, "application/json", tree},
		{"a head", "HEAD", "/node_group", 200, "application/json", ""},
		{"a kind and a name", "GET", "/node_group?kind=dragonfly&name=dragonfly-2", 200, "application/json", fly2},
		{"a name", "GET", "/node_group?name=dragonfly-2", 200, "application/json", fly2},
		{"a node", "GET", "/node_group?kind=node&name=n3", 200, "application/json", `[{"name":"n3","kind":"node","status":"Ready"}]` + "\n"},
		{"nothing of that name", "GET", "/node_group?name=x", 200, "application/json", "[]\n"},
		{"an unknown parameter", "GET", "/node_group?pretty=1", 200, "application/json", tree},
		{"no way to write", "POST", "/node_group", 405, "text/plain; charset=utf-8", "…"},
		{"an unknown node", "GET", "/v1/nodes/x", 404, "text/plain; charset=utf-8", "…"},
		{"Slurm", "GET", "/v1/export/slurm-block?kind=dragonfly", 200, "text/plain; charset=utf-8", "BlockName=dragonfly-1 Nodes=n[1-2]\nBlockName=dragonfly-2 Nodes=n3\nBlockSizes=1,2\n"},
		{"Slurm of no kind", "GET", "/v1/export/slurm-block?kind=x", 400, "text/plain; charset=utf-8", "…"},
		{"an unknown format", "GET", "/v1/export/x", 404, "text/plain; charset=utf-8", "…"},
		{"the page", "GET", "/", 200, "text/html; charset=utf-8", "…"},
		{"no page", "GET", "/x", 404, "text/plain; charset=utf-8", "…"},
		{"not alive", "GET", "/healthz", 503, "text/plain; charset=utf-8", "stuck\n"},
		{"ready", "GET", "/readyz", 200, "text/plain; charset=utf-8", "ok\n"},
		{"metrics", "GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "…"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := ask(h, tt.method, tt.target)
			if w.Code != tt.code || tt.body != "…" && cmp.Diff(tt.body, w.Body.String()) != "" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			// The recorder, unlike a server, does not look at the body for a type.
			if got := w.Header().Get("Content-Type"); got != "" && got != tt.contentType {
				t.Errorf("content type %s, want %s", got, tt.contentType)
			}
		})
	}
}

func TestCompressedAnswersAreTheSame(t *testing.T) {
	f := newFixture(t, fabric.ModeSwitchbox)
	f.put("dragonfly-1", "n1", "n2")
	h := newServer(f).Handler()
	for _, path := range []string{
		"/node_group", "/node_group?kind=node", "/v1/topology", "/v1/nodes/n1",
		"/v1/export/slurm", "/v1/export/hypernode", "/v1/export/kueue", "/v1/export/labels",
	} {
		plain, packed := ask(h, "GET", path), ask(h, "GET", path, "Accept-Encoding", "br, gzip;q=0.5")
		if diff := cmp.Diff(plain.Body.String(), unzip(t, packed.Body)); diff != "" {
			t.Errorf("%s (-plain +compressed):\n%s", path, diff)
		}
		if packed.Header().Get("Content-Encoding") != "gzip" || plain.Header().Get("Content-Encoding") != "" ||
			plain.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: headers %v and %v", path, plain.Header(), packed.Header())
		}
		tag, other := plain.Header().Get("ETag"), packed.Header().Get("ETag")
		if tag == other || tag == "" {
			t.Errorf("%s: other bytes, tags %s and %s", path, tag, other)
		}
		if length, _ := strconv.Atoi(plain.Header().Get("Content-Length")); length != plain.Body.Len() {
			t.Errorf("%s: length %d of %d bytes", path, length, plain.Body.Len())
		}
		// Either tag is good for either answer.
		for _, theirs := range []string{tag, other, "W/" + tag, `"x", ` + other, "*"} {
			for _, coding := range []string{"", "gzip"} {
				w := ask(h, "GET", path, "If-None-Match", theirs, "Accept-Encoding", coding)
				if w.Code != http.StatusNotModified || w.Body.Len() > 0 {
					t.Errorf("%s with %s and %q: %d", path, theirs, coding, w.Code)
				}
			}
		}
		if w := ask(h, "GET", path, "If-None-Match", `"x"`); w.Code != http.StatusOK {
			t.Errorf("%s with another tag: %d", path, w.Code)
		}
		if w := ask(h, "HEAD", path); w.Body.Len() > 0 || w.Header().Get("Content-Length") != plain.Header().Get("Content-Length") {
			t.Errorf("head of %s: %d bytes, %v", path, w.Body.Len(), w.Header())
		}
	}
	tag := ask(h, "GET", "/node_group").Header().Get("ETag")
	f.put("dragonfly-1", "n3")
	if w := ask(h, "GET", "/node_group", "If-None-Match", tag); w.Code != http.StatusOK {
		t.Errorf("after a change: %d", w.Code)
	}
}

// The files of the page are kept by browsers and asked for again.
func TestPageFiles(t *testing.T) {
	h := newServer(newFixture(t, fabric.ModeSwitchbox)).Handler()
	for path, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/index.html": "text/html; charset=utf-8", "/page.js": "text/javascript; charset=utf-8",
		"/page.css": "text/css; charset=utf-8", "/favicon.svg": "image/svg+xml",
	} {
		for _, coding := range []string{"", "gzip"} {
			w := ask(h, "GET", path, "Accept-Encoding", coding)
			want := http.Header{
				"Content-Type": {contentType}, "Cache-Control": {"no-cache"}, "Vary": {"Accept-Encoding"},
				"X-Content-Type-Options": {"nosniff"}, "Content-Security-Policy": {policy},
				"Etag": w.Header()["Etag"], "Content-Length": {strconv.Itoa(w.Body.Len())},
			}
			if coding != "" {
				want["Content-Encoding"] = []string{coding}
			}
			if diff := cmp.Diff(want, w.Header()); w.Code != http.StatusOK || diff != "" || len(w.Header()["Etag"]) != 1 {
				t.Errorf("%s with %q: %d, headers (-want +got):\n%s", path, coding, w.Code, diff)
			}
			again := ask(h, "GET", path, "Accept-Encoding", coding, "If-None-Match", w.Header().Get("Etag"))
			if again.Code != http.StatusNotModified || again.Body.Len() > 0 || again.Header().Get("Content-Security-Policy") == "" {
				t.Errorf("%s again: %d with %v", path, again.Code, again.Header())
			}
		}
	}
	for _, path := range []string{"/none.js", "/src", "/src/main.js", "/../server.go", "/%2e%2e/server.go"} {
		if w := ask(h, "GET", path); w.Code != http.StatusNotFound && w.Code != http.StatusTemporaryRedirect && w.Code != http.StatusMovedPermanently {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestAnswersHaveContactAge(t *testing.T) {
	f := newFixture(t, fabric.ModeSwitchbox)
	f.put("dragonfly-1", "n1")
	var contact time.Time
	h := newServer(f, func(o *Options) { o.Contact = func() time.Time { return contact } }).Handler()
	for _, path := range []string{"/node_group", "/v1/topology", "/v1/nodes/n1", "/v1/export/slurm"} {
		contact = time.Time{}
		if age, ok := ask(h, "GET", path).Header()["Heddle-Contact-Age"]; ok {
			t.Errorf("%s: age %v of no contact", path, age)
		}
		contact = time.Now().Add(-time.Hour)
		for _, known := range []string{"", "*"} {
			age, err := strconv.Atoi(ask(h, "GET", path, "If-None-Match", known).Header().Get("Heddle-Contact-Age"))
			if err != nil || age < 3600 || age > 4200 {
				t.Errorf("%s with %q: age %d, %v", path, known, age, err)
			}
		}
		contact = time.Now().Add(time.Hour) // The clock was set back.
		if age := ask(h, "GET", path).Header().Get("Heddle-Contact-Age"); age != "0" {
			t.Errorf("%s: age %s", path, age)
		}
	}
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"gzip": true, "deflate, gzip": true, "GZIP": true, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.1": true,
		"identity": false, "": false, "x-gzip": false, "br;q=1": false,
	} {
		if got := acceptsGzip(http.Header{"Accept-Encoding": {header}}); got != want {
			t.Errorf("%q: %t", header, got)
		}
	}
}

func TestMetricsOfRequests(t *testing.T) {
	f := newFixture(t, fabric.ModeSwitchbox)
	f.put("dragonfly-1", "n1")
	server := newServer(f)
	h := server.Handler()
	ask(h, "GET", "/node_group")
	ask(h, "GET", "/node_group", "If-None-Match", "*")
	ask(h, "GET", "/v1/nodes/x")
	families, err := server.options.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "heddle_topology_http_requests_total" {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				got[labels["route"]+" "+labels["code"]] = m.GetCounter().GetValue()
			}
		}
	}
	want := map[string]float64{"/node_group 200": 1, "/node_group 304": 1, "/v1/nodes/{name} 404": 1}
	if !maps.Equal(want, got) {
		t.Errorf("requests %v, want %v", got, want)
	}
}
