package topologyclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

const leafs = `[{"name":"leaf-1","kind":"leaf","child":[{"name":"a","kind":"node","status":"Ready"}],"status":"Ready"},{"name":"b","kind":"node","status":"NotReady"}]`

func groups() []v1alpha1.Group {
	return []v1alpha1.Group{
		{Name: "leaf-1", Kind: "leaf", Status: "Ready", Child: []v1alpha1.Group{{Name: "a", Kind: "node", Status: "Ready"}}},
		{Name: "b", Kind: "node", Status: "NotReady"},
	}
}

// master answers without a network, so that synctest sees everything block.
type master func(*http.Request) (*http.Response, error)

func (m master) RoundTrip(r *http.Request) (*http.Response, error) { return m(r) }

func reply(status int, tag, body string) (*http.Response, error) {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}, "Etag": {tag}},
		Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func TestPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var asked []string
		answer := func() (*http.Response, error) { return nil, errors.New("connection refused") }
		set := func(how func() (*http.Response, error)) {
			mu.Lock()
			defer mu.Unlock()
			answer = how
		}
		f := topologyclient.New(topologyclient.Options{
			URL: "http://master/node_group", Interval: time.Second, MaxAge: 10 * time.Second,
			HTTP: &http.Client{Transport: master(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, r.Header.Get("If-None-Match"))
				return answer()
			})},
			Log: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()

		synctest.Wait()
		if m, err := f.Current(); m.Fresh(time.Now()) || m.Groups != nil || err == nil {
			t.Errorf("without an answer: %+v, error %v", m, err)
		}

		set(func() (*http.Response, error) { return reply(200, `"1"`, leafs) })
		next := func() { <-time.After(time.Second); synctest.Wait() }
		next()
		first, err := f.Current()
		want := topologyclient.Tree{Groups: groups(), Generation: 1, Confirmed: time.Now()}
		if diff := cmp.Diff(want, first, cmpopts.IgnoreUnexported(topologyclient.Tree{})); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}

		set(func() (*http.Response, error) { return reply(304, `"1"`, "") })
		<-time.After(20 * time.Second)
		synctest.Wait()
		if m, _ := f.Current(); m.Generation != 1 || !m.Fresh(time.Now()) {
			t.Errorf("confirmed for long: %+v", m)
		}
		mu.Lock()
		if last := asked[len(asked)-1]; last != `"1"` {
			t.Errorf("asked with %q", last)
		}
		mu.Unlock()

		for _, invalid := range []string{`{`, `[{"name":"","kind":"node"}]`, `<html>`} {
			set(func() (*http.Response, error) { return reply(200, `"invalid"`, invalid) })
			<-time.After(2 * time.Second)
			synctest.Wait()
			if m, err := f.Current(); m.Generation != 1 || err == nil {
				t.Errorf("%s is accepted: %+v", invalid, m)
			}
		}
		<-time.After(10 * time.Second)
		if m, _ := f.Current(); m.Fresh(time.Now()) || len(m.Groups) != 2 {
			t.Errorf("too old: %+v", m)
		}

		// The same tree, fresh again.
		set(func() (*http.Response, error) { return reply(304, `"1"`, "") })
		next()
		if m, _ := f.Current(); m.Generation != 1 || !m.Fresh(time.Now()) {
			t.Errorf("fresh again: %+v", m)
		}

		set(func() (*http.Response, error) { return reply(200, `"2"`, `[]`) })
		next()
		if m, _ := f.Current(); m.Generation != 2 || len(m.Groups) != 0 || m.Groups == nil || !m.Fresh(time.Now()) {
			t.Errorf("a new tree: %+v", m)
		}
		stop()
		<-done
	})
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		err    string
	}{
		{"good", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, leafs)
		}, ""},
		{"not ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "503 Service Unavailable"},
		{"HTML", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "invalid character"},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for range 100 {
				_, _ = io.WriteString(w, strings.Repeat(" ", 1<<20))
			}
		}, "more than 67108864 bytes"},
		{"304 without If-None-Match", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, "304"},
		{"slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "context deadline exceeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := topologyclient.New(topologyclient.Options{
					URL: "http://master/node_group", Interval: time.Hour, Log: slog.New(slog.DiscardHandler),
					HTTP: &http.Client{Transport: master(func(r *http.Request) (*http.Response, error) {
						w := httptest.NewRecorder()
						tt.answer(w, r)
						if err := r.Context().Err(); err != nil {
							return nil, err
						}
						return w.Result(), nil
					})},
				})
				ctx, stop := context.WithCancel(t.Context())
				go f.Run(ctx)
				<-time.After(time.Minute)
				synctest.Wait()
				_, err := f.Current()
				if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				stop()
			})
		})
	}
}

func TestDecodeRejects(t *testing.T) {
	deep := `[]`
	for i := range 20 {
		deep = fmt.Sprintf(`[{"name":"g%d","kind":"leaf","child":%s}]`, i, deep)
	}
	for _, tt := range []struct{ name, text, err string }{
		{"a node twice", `[{"name":"a","kind":"node"},{"name":"l","kind":"leaf","child":[{"name":"a","kind":"node"}]}]`, `node "a" stands in two places`},
		{"a node with children", `[{"name":"a","kind":"node","child":[{"name":"b","kind":"node"}]}]`, `node "a" has children`},
		{"a group twice", `[{"name":"l","kind":"leaf"},{"name":"s","kind":"spine","child":[{"name":"l","kind":"leaf"}]}]`, `leaf "l" stands in two places`},
		{
			"kinds inside each other", `[{"name":"l","kind":"leaf","child":[{"name":"s","kind":"spine"}]},{"name":"t","kind":"spine","child":[{"name":"m","kind":"leaf"}]}]`,
			"kinds of groups contain each other",
		},
		{"no kind", `[{"name":"a"}]`, `the kind ""`},
		{"too deep", deep, "more than 16 groups deep"},
		{"no list", `{"name":"a"}`, "node groups"},
		{"too many", `[` + strings.Repeat(`{},`, 1<<19) + `{}]`, "or than 524288 groups and nodes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := topologyclient.Decode([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, error %v, want %q", got, err, tt.err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(leafs))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := topologyclient.Decode(body)
		if err != nil {
			return
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := topologyclient.Decode(text); err != nil {
			t.Errorf("%s becomes %s: %v", body, text, err)
		}
	})
}
