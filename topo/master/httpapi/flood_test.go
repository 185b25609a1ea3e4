package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
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

// 1,100 idle connections of one pod or of many took topo-master down through its
// own probes.
func TestProbesBesideIdleConnections(t *testing.T) {
	for name, sources := range map[string]int{"one source": 1, "1100 sources": 1100} {
		t.Run(name, func(t *testing.T) {
			_, api, probes := flooded(t)
			for i := range 1100 {
				from := &net.TCPAddr{IP: net.IPv4(127, 1, byte(i%sources>>8), byte(i%sources))}
				c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", api)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			for url, want := range map[string]string{
				"http://" + probes + "/healthz": "ok", "http://" + probes + "/readyz": "ok", "http://" + probes + "/node_group": "not found",
				"http://" + api + "/healthz": "ok", "http://" + api + "/node_group": "n1",
			} {
				resp, err := client.Get(url)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), want) {
					t.Errorf("%s: %s %q, %v", url, resp.Status, body, err)
				}
			}
		})
	}
}
