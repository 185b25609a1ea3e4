package clustermanager

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/worker"
)

var update = flag.Bool("update", false, "write the results in testdata")

const good = `{"version": "v1", "comment": {"by": ["us", 1, null]}, "nodes": [
  {"name": "n0", "path": ["switchbox-1", "dragonfly-1"]},
  {"name": "n1", "path": ["switchbox-1", "dragonfly-2"], "rails": [{"rail": 0, "switch": "leaf-a", "name": "Leaf A", "port": "7"}]}
]}`

var n1 = worker.Place{
	Path:  []string{"switchbox-1", "dragonfly-2"},
	Rails: []v1alpha1.Rail{{Switch: &v1alpha1.Switch{ID: "leaf-a", Name: "Leaf A"}, SwitchPort: "7"}},
}

// manager is a cluster manager over TLS and the folder of a Secret that goes
// with it.
func manager(t *testing.T, handle http.HandlerFunc) *client {
	t.Helper()
	server := httptest.NewTLSServer(handle)
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil
	secrets := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for file, text := range map[string]string{"user": "heddle\n", "password": "cGFzcw==\n\n", "ca.crt": string(authority)} {
		if err := os.WriteFile(filepath.Join(secrets, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(server.URL+"/topology?cluster=a", Options{Secrets: secrets, UserAgent: "test/1"})
	c.patience = time.Minute // The race detector is slow.
	return c
}

func writes(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

func TestQuestion(t *testing.T) {
	asked := 0
	c := manager(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		user, password, _ := r.BasicAuth()
		// The password looks like base64 and is not decoded; one newline of two is cut.
		if user != "heddle" || password != "cGFzcw==\n" {
			t.Errorf("user %q, password %q", user, password)
		}
		if r.URL.Path != "/topology" || r.URL.RawQuery != "cluster=a&node=n1" || r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"1"`)
		writes("application/json; charset=utf-8", good)(w, r)
	})
	for range 2 {
		got, err := c.fetch(t.Context(), "n1")
		if diff := cmp.Diff(n1, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}

func TestBadServers(t *testing.T) {
	kilo := strings.Repeat("x", 1000)
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); ok {
			t.Error("the password went to another host")
		}
		t.Error("another host was asked")
	}))
	defer elsewhere.Close()
	for _, tt := range []struct {
		name   string
		handle http.HandlerFunc
		want   string
	}{
		{"login page", writes("text/html; charset=utf-8", "<html>"), `it answers "text/html; charset=utf-8", not application/json`},
		{"HTML that claims to be JSON", writes("application/json", "<html>"), "invalid JSON in the answer: invalid character '<'"},
		{"text", writes("text/plain", good), `it answers "text/plain", not application/json`},
		{"wrong password", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, "it answers 401 Unauthorized"},
		{"not modified, unasked", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, "it answers 304 Not Modified"},
		{
			"redirect to another host", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
			"it redirects to https://127.0.0.1:",
		},
		{
			"redirect to plain HTTP", func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://"+r.Host+"/", http.StatusFound)
			}, "it redirects to http://127.0.0.1:",
		},
		{
			"redirects in a circle", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) },
			"more than 3 redirects",
		},
		{"100 MB of one text", endless(`{"version": "`, "x"), "longer than 8388608 bytes"},
		{"100 MB of what it does not know", endless(`{"more": [`, `"`+kilo+`",`), "longer than 8388608 bytes"},
		{"100 MB of nodes", endless(`{"nodes": [`, `{"name":"`+kilo+`"},`), "longer than 8388608 bytes"},
		{"100 MB in a small archive", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			endless(`{"nodes": [`, `{"name":"`+kilo+`"},`)(writer{w, z}, r)
		}, "longer than 8388608 bytes"},
		{"slow", func(w http.ResponseWriter, r *http.Request) {
			writes("application/json", `{"version": "v1",`)(w, r)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "no whole answer within"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := manager(t, tt.handle)
			if tt.name == "slow" {
				c.patience = 100 * time.Millisecond
			}
			_, err := c.fetch(t.Context(), "n1")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

// writer writes a body through something.
type writer struct {
	http.ResponseWriter
	body io.Writer
}

func (w writer) Write(b []byte) (int, error) { return w.body.Write(b) }

// endless writes 100 MB.
func endless(start, item string) http.HandlerFunc {
	chunk := strings.Repeat(item, 64<<10/len(item))
	return func(w http.ResponseWriter, r *http.Request) {
		writes("application/json", start)(w, r)
		for n := 0; n < 100<<20; n += len(chunk) {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	}
}

func TestRedirectOnOneHost(t *testing.T) {
	c := manager(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/topology" {
			http.Redirect(w, r, "/v2/topology", http.StatusMovedPermanently)
			return
		}
		if _, _, ok := r.BasicAuth(); !ok {
			t.Error("no password after the redirect")
		}
		writes("application/json", good)(w, r)
	})
	if got, err := c.fetch(t.Context(), "n1"); err != nil || len(got.Path) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSecretAndAuthority(t *testing.T) {
	c := manager(t, writes("application/json", good))
	change := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.secrets, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(want string) {
		t.Helper()
		if _, err := c.fetch(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	change("user", "a:b")
	fails("the Secret's user has a colon")
	change("user", "a")
	change("ca.crt", "nothing")
	fails("the Secret's ca.crt has no certificate in it")
	if err := os.Remove(filepath.Join(c.secrets, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	fails("certificate signed by unknown authority")
	if err := os.Remove(filepath.Join(c.secrets, "password")); err != nil {
		t.Fatal(err)
	}
	fails("the Secret's password: no such file")
	c.address = strings.Replace(c.address, "https", "http", 1)
	fails("invalid https address")
}

// TestDecode: the file has answers, and what n1 gets of them.
func TestDecode(t *testing.T) {
	golden.Rows(t, "testdata/answers.txt", *update, func(text string) string {
		place, err := decode(strings.NewReader(text), "n1")
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("path %v, %d rails", place.Path, len(place.Rails))
	})
}

// TestDocumentation reads the example of docs/concepts/topology.md.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/concepts/topology.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```json\n")
	text, _, _ = strings.Cut(text, "```")
	got, err := decode(strings.NewReader(text), "node-1")
	want := worker.Place{Path: []string{"switchbox-1", "dragonfly-1"}, Rails: []v1alpha1.Rail{
		{Switch: &v1alpha1.Switch{ID: "2c5eab0300c26480", Name: "leaf-a"}, SwitchPort: "7"},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"nodes":[{"name":"n1","path":["a"],"rails":[{"rail":1,"plane":2,"switch":"\u0000"}]}],"version":"v1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decode(strings.NewReader(string(b)), "n1")
		if err == nil && (len(n.Path) > worker.MaxPath || len(n.Rails) > worker.MaxRails) {
			t.Errorf("%+v", n)
		}
	})
}

// TestSourceKeepsTheLastGoodAnswer runs a source against a server that dies.
func TestSourceKeepsTheLastGoodAnswer(t *testing.T) {
	answers := make(chan http.HandlerFunc, 1)
	current := writes("application/json", good)
	c := manager(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case current = <-answers:
		default:
		}
		current(w, r)
	})
	changed := notify.New()
	s := New(Options{Secrets: c.secrets, Changed: changed, Log: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	topology := config.Default().Topology
	topology.ClusterManager = config.HTTPSAddress(c.address)
	q := worker.Query{Node: "n1", Topology: topology, Ports: []worker.Port{{
		Rail: v1alpha1.Rail{ID: "a", Port: 1, Role: "fabric"},
	}}}
	if r := s.Discover(ctx, q); r.NoPath != worker.Pending {
		t.Errorf("before the answer: %+v", r)
	}
	<-changed
	want := worker.Report{Path: n1.Path, Links: []worker.Link{{
		PortKey: worker.PortKey{ID: "a", Port: 1}, Switch: v1alpha1.Switch{ID: "leaf-a", Name: "Leaf A"}, SwitchPort: "7",
		Confidence: confidenceFresh,
	}}}
	if diff := cmp.Diff(want, s.Discover(ctx, q)); diff != "" {
		t.Errorf("answered (-want +got):\n%s", diff)
	}
	if age, ok := s.Age(); !ok || age > time.Minute {
		t.Errorf("age %s, %v", age, ok)
	}
	answers <- writes("text/html", "<html>")
	q.Node = "n2" // Asks again at once.
	s.Discover(ctx, q)
	<-changed
	got := s.Discover(ctx, q)
	if len(got.Skipped) != 1 || !strings.Contains(got.Skipped[0].Reason, "no good answer since 20") ||
		!strings.Contains(got.Skipped[0].Reason, "text/html") {
		t.Errorf("skipped %+v", got.Skipped)
	}
	got.Skipped = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	s.mu.Lock()
	s.at = s.at.Add(-2 * old)
	s.mu.Unlock()
	if got := s.Discover(ctx, q); got.Links[0].Confidence != confidenceOld {
		t.Errorf("old answer with confidence %d", got.Links[0].Confidence)
	} else if got.Stale == nil || !got.Stale.Since.Equal(s.at) {
		t.Errorf("old answer, stale %+v", got.Stale)
	}
	q.Topology.ClusterManager = ""
	if diff := cmp.Diff(worker.Report{}, s.Discover(ctx, q)); diff != "" {
		t.Errorf("switched off (-want +got):\n%s", diff)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Equal failures read alike: a reason with a connection's port in it would be
// a new one each time, and a write to the API server.
func TestFailuresAreStable(t *testing.T) {
	c := newClient("https://127.0.0.1:1/", Options{})
	c.patience = time.Minute
	_, first := c.fetch(t.Context(), "n1")
	_, second := c.fetch(t.Context(), "n1")
	if first == nil || second == nil || first.Error() != second.Error() || errors.Is(first, context.DeadlineExceeded) {
		t.Errorf("%v\n%v", first, second)
	}
	if want := "dial: connect: connection refused"; fmt.Sprint(first) != want {
		t.Errorf("%v, want %s", first, want)
	}
}
