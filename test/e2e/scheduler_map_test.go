//go:build e2e && linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The last good map holds for its time; then gangs wait or go without it, as they
// decide, and those that wait go on once there is one again.

// TestMapGone is a topo-master that ends, and another one that begins.
func TestMapGone(t *testing.T) {
	away(t, 19413, func(_ *fleet, m *topoMaster) { m.stop() },
		func(f *fleet, _ *topoMaster) { f.startTopoMaster(t, "back", 19413, "--exports", "none") })
}

// TestTopoMasterStale is one that hangs: it takes connections and never answers.
func TestTopoMasterStale(t *testing.T) {
	signal := func(m *topoMaster, s syscall.Signal) {
		if err := m.process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	away(t, 19424, func(_ *fleet, m *topoMaster) {
		signal(m, syscall.SIGSTOP)
		t.Cleanup(func() { signal(m, syscall.SIGCONT) }) // It cannot end else.
	}, func(_ *fleet, m *topoMaster) { signal(m, syscall.SIGCONT) })
}

// away takes a topo-master away and brings it back.
func away(t *testing.T, port int, goes, comes func(*fleet, *topoMaster)) {
	t.Helper()
	const age = 12 * time.Second
	f := newFleet(t, fmt.Sprintf("gpuScheduler.map.address=http://127.0.0.1:%d/node_group", port),
		"gpuScheduler.map.interval=500ms", "gpuScheduler.map.maxAge="+age.String())
	m, at := f.leaves(t, port, map[string][]string{leafA: numbered("away-a", 2), leafB: numbered("away-b", 3)})
	waits := map[string]string{inOneLeaf: "leaf", "heddle.dev/gang-without-map": "wait"}
	// The scheduler has the map when it obeys it.
	f.gang(t, "with", 2, 8, waits)
	for node := range f.running(t, 30*time.Second, "with", 2) {
		if at[node] != leafA {
			t.Errorf("with the map it is on %s", node)
		}
	}
	goes(f, m)
	gone := time.Now()
	f.gang(t, "last", 3, 4, waits)
	for node := range f.running(t, age, "last", 3) {
		if at[node] != leafB {
			t.Errorf("with the last good map it is on %s", node)
		}
	}
	if took := time.Since(gone); took > age {
		t.Fatalf("the map was %s old: nothing is proved", took)
	}
	<-time.After(time.Until(gone.Add(age + time.Second)))
	f.gang(t, "wait", 2, 2, waits)
	t.Log(f.rejected(t, "wait", 2, "waits for a topology tree"))
	f.gang(t, "place", 2, 2, map[string]string{inOneLeaf: "leaf"})
	f.running(t, 30*time.Second, "place", 2)
	comes(f, m)
	f.running(t, 30*time.Second, "wait", 2)
}

// liar stands before a topo-master, and answers something else when the test sets it.
type liar struct {
	mu    sync.Mutex
	truth http.Handler
	lie   http.HandlerFunc
	// asked counts the questions that were answered so.
	asked int
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lie == nil {
		l.truth.ServeHTTP(w, r)
	} else {
		l.lie(w, r)
	}
	l.asked++
}

// script changes the answer, and waits until it was received. A question follows the
// answer before it, so the second one reports that the first was dealt with.
func (l *liar) script(t *testing.T, lie http.HandlerFunc) {
	t.Helper()
	l.mu.Lock()
	l.lie, l.asked = lie, 0
	l.mu.Unlock()
	eventually(t, 10*time.Second, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.asked < 2 {
			return fmt.Sprintf("the scheduler asked %d times", l.asked)
		}
		return ""
	})
}

func shows(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

// tree is an answer of topo-master, of groups as "name: node node".
func tree(groups ...string) http.HandlerFunc {
	var all []string
	for _, g := range groups {
		name, nodes, _ := strings.Cut(g, ":")
		var children []string
		for node := range strings.FieldsSeq(nodes) {
			children = append(children, fmt.Sprintf(`{"name":%q,"kind":"node","status":"Ready"}`, node))
		}
		all = append(all, fmt.Sprintf(`{"name":%q,"kind":"leaf","child":[%s],"status":"Ready"}`, name, strings.Join(children, ",")))
	}
	return shows("application/json", "["+strings.Join(all, ",")+"]")
}

// TestTopoMasterLies is a topo-master that answers what cannot be: each answer
// is rejected as a whole, and gangs are placed by the last good map.
func TestTopoMasterLies(t *testing.T) {
	const json = "application/json"
	origin, err := url.Parse("http://127.0.0.1:19425")
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{truth: httputil.NewSingleHostReverseProxy(origin), lie: http.NotFound}
	server := httptest.NewServer(l)
	defer server.Close()
	f := newFleet(t, "gpuScheduler.map.address="+server.URL+"/node_group", "gpuScheduler.map.interval=200ms",
		"gpuScheduler.map.without=wait")
	_, at := f.leaves(t, 19425, map[string][]string{leafA: numbered("lies-a", 2), leafB: numbered("lies-b", 3)})
	inLeafB := func(t *testing.T, name string) {
		t.Helper()
		f.gang(t, name, 3, 8, map[string]string{inOneLeaf: "leaf"})
		for node := range f.running(t, 30*time.Second, name, 3) {
			if at[node] != leafB {
				t.Errorf("a pod is on %s", node)
			}
		}
		f.clear(t)
	}
	l.script(t, nil)
	inLeafB(t, "truth")
	for i, tt := range []struct {
		name string
		lie  http.HandlerFunc
	}{
		{"no JSON", shows(json, `[{"name": `)},
		{"no list", shows(json, `{"name": "leaf-1", "kind": "leaf", "child": []}`)},
		{"a page", shows("text/html", "<html><body>It works!</body></html>")},
		{"a page that claims to be JSON", shows(json, "<html><body>Sign in</body></html>")},
		{"an error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `[]`, http.StatusInternalServerError) }},
		{"an answer that breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", json)
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `[]`)
		}},
		{"a node in two leaves", tree("x: lies-a0 lies-a1 lies-b0", "y: lies-b0 lies-b1 lies-b2")},
		{"a leaf in two places", tree("x: lies-a0 lies-a1", "x: lies-b0")},
		{"leaves and spines in each other", shows(json, `[{"name":"l","kind":"leaf","child":[{"name":"s","kind":"spine","child":[]}]},
			{"name":"t","kind":"spine","child":[{"name":"m","kind":"leaf","child":[]}]}]`)},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "-"), func(t *testing.T) {
			l.script(t, tt.lie)
			inLeafB(t, fmt.Sprintf("lie-%d", i))
		})
	}
	// Nodes that are no more, or not yet: a map may be ahead or behind. They take
	// nothing.
	l.script(t, tree("x: ghost-0 ghost-1 ghost-2 ghost-3", "y: lies-a0 lies-a1", "z: lies-b0 lies-b1 lies-b2 ghost-4"))
	inLeafB(t, "ghosts")
	f.gang(t, "four", 4, 8, map[string]string{inOneLeaf: "leaf"})
	t.Log(f.rejected(t, "four", 4, "rejected by podgroup four"))
}
