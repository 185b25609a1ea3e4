package topologyclient_test

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// NVLink domains that cross groups are asked for when topo-master has others, also if
// the tree is what it was, and are gone when it has none.
func TestCrossingDomains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const domain = `{"name":"x","kind":"nvlink","child":[{"name":"a","kind":"node","status":"Ready"}],"status":"Ready"}`
		var mu sync.Mutex
		tag, asked := "", []string{}
		set := func(to string) {
			mu.Lock()
			defer mu.Unlock()
			tag, asked = to, nil
		}
		f := topologyclient.New(topologyclient.Options{
			URL: "http://master/node_group?x=y", Interval: time.Second,
			HTTP: &http.Client{Transport: master(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, r.URL.RawQuery)
				var w *http.Response
				var err error
				switch {
				case r.URL.Query().Get("axis") == "nvlink" && tag == "bad":
					return reply(500, "", "")
				case r.URL.Query().Get("axis") == "nvlink":
					return reply(200, tag, `[`+domain+`,{"name":"b","kind":"node","status":"NotReady"}]`)
				case r.Header.Get("If-None-Match") == `"1"`:
					w, err = reply(304, `"1"`, "")
				default:
					w, err = reply(200, `"1"`, leafs)
				}
				if tag != "" {
					w.Header.Set(v1alpha1.CrossingHeader, tag)
				}
				return w, err
			})},
			Log: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		domains := func(want int, generation uint64) {
			t.Helper()
			synctest.Wait()
			now, _ := f.Current()
			if len(now.Domains) != want || now.Generation != generation || !cmp.Equal(groups(), now.Groups) {
				t.Errorf("%d domains in generation %d, want %d in %d: %+v", len(now.Domains), now.Generation, want, generation, now.Groups)
			}
		}
		second := time.NewTicker(time.Second)
		defer second.Stop()
		next := func() { <-second.C; synctest.Wait() }
		domains(0, 1)
		set(`"d1"`)
		next()
		domains(1, 2)
		set(`"d1"`) // Nothing new, and no second question.
		next()
		domains(1, 2)
		if diff := cmp.Diff([]string{"x=y"}, asked); diff != "" {
			t.Errorf("questions (-want +got):\n%s", diff)
		}
		set("bad") // What there was stays, and nothing of it is confirmed.
		next()
		domains(1, 2)
		if _, err := f.Current(); err == nil {
			t.Error("no error")
		}
		set("")
		next()
		domains(0, 3)
		stop()
		<-done
	})
}
