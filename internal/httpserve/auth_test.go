package httpserve

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

func request(from string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.RemoteAddr = from
	r.Header.Set("Authorization", "Bearer t")
	return r
}

// slow is an API server that answers when the test lets it.
type slow struct{ arrived, answer chan struct{} }

func (s slow) RoundTrip(*http.Request) (*http.Response, error) {
	s.arrived <- struct{}{}
	<-s.answer
	return nil, http.ErrServerClosed
}

func newAuth(t *testing.T, api http.RoundTripper, log *slog.Logger) *Auth {
	t.Helper()
	a, err := NewAuth(&rest.Config{Host: "http://api", QPS: -1, Transport: api}, "a", log)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Requests that wait for the API server are few: each has a connection of the server.
func TestWaitingRequestsAreFew(t *testing.T) {
	api := slow{make(chan struct{}), make(chan struct{})}
	a := newAuth(t, api, slog.New(slog.DiscardHandler))
	var waiting sync.WaitGroup
	for range maxReviews {
		waiting.Go(func() { a.Admit(request("10.0.0.7:1")) })
		<-api.arrived
	}
	// It would wait for the API server, and never come back here.
	if code := a.Admit(request("10.0.0.9:1")); code != http.StatusServiceUnavailable {
		t.Errorf("one more: %d", code)
	}
	close(api.answer)
	waiting.Wait()
	if len(a.reviews) != 0 {
		t.Errorf("still wait: %d", len(a.reviews))
	}
}

// broken is an API server that is away.
type broken struct{}

func (broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed }

// Anyone can have a token reviewed while the API server is away; the log has it once a minute.
func TestWarnsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := newAuth(t, broken{}, slog.New(slog.NewTextHandler(&log, nil)))
		for _, want := range []int{1, 2} {
			for range 5 {
				if code := a.Admit(request("10.0.0.7:1")); code != http.StatusServiceUnavailable {
					t.Errorf("while the API server is away: %d", code)
				}
			}
			if got := strings.Count(log.String(), "token cannot be reviewed"); got != want {
				t.Errorf("%d warnings, want %d:\n%s", got, want, log.String())
			}
			<-time.After(2 * time.Minute)
		}
	})
}
