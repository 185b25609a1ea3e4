package program

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestServe(t *testing.T) {
	if err := Serve(t.Context(), slog.Default(), "no-such-host.invalid:1", prometheus.NewRegistry(), nil, nil, nil); err == nil {
		t.Error("an address that cannot be listened on is no error")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	registry := NewRegistry("v1.2.3")
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "heddle_test", Help: "A test."}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	healthy := func() string { return "" }
	more := &Restricted{Metrics: prometheus.NewRegistry(), Path: "/v1/more", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "more")
	})}
	go func() {
		done <- Serve(ctx, slog.Default(), address, registry, healthy, func() string { return "not yet" }, more)
	}()
	get := func(path string) (int, string) {
		for {
			resp, err := http.Get("http://" + address + path)
			if err != nil {
				continue // not listening yet
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(body)
		}
	}
	for _, tt := range []struct {
		path string
		code int
		body string
	}{{"/healthz", 200, "ok"}, {"/readyz", 503, "not yet"}, {"/metrics", 200, "heddle_test 0"}, {"/metrics", 200, `version="v1.2.3"} 1`}, {"/v1/more", 200, "more"}, {"/v1/less", 404, ""}} {
		if code, body := get(tt.path); code != tt.code || !strings.Contains(body, tt.body) {
			t.Errorf("%s: %d %q", tt.path, code, body)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
