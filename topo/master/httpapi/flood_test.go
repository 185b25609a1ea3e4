package httpapi

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
)

// flooded is a server with its probes' port.
func flooded(t *testing.T) (f *fixture, api, probes string) {
	t.Helper()
	f = newFixture(t, fabric.ModeSwitchbox)
	f.put("dragonfly-1", "n1")
	s := newServer(f, func(o *Options) { o.Alive = func() string { return "" } })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	listener := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, p := listener(), listener()
	go func() { done <- s.Serve(ctx, a, nil) }()
	go func() { done <- s.ServeProbes(ctx, p) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return f, a.Addr().String(), p.Addr().String()
}

// A reader of events stays, however little time others have for a request.
func TestWatchOutlivesTheReadTimeout(t *testing.T) {
	t.Parallel()
	f, api, _ := flooded(t)
	resp, err := http.Get("http://" + api + "/v1/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	time.AfterFunc(12*time.Second, func() { f.put("dragonfly-1", "n2") })
	events := bufio.NewScanner(resp.Body)
	for events.Scan() {
		if events.Text() == "id: 2" {
			return
		}
	}
	t.Errorf("the stream ended: %v", events.Err())
}
