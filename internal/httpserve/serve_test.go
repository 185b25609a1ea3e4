package httpserve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

// serve runs a server until the test ends.
func serve(t *testing.T, o Options) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o.Log = slog.New(slog.DiscardHandler)
	go func() { done <- Serve(ctx, l, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// dial connects from one of the addresses 127.1.SOURCE.
func dial(t *testing.T, address string, source int) net.Conn {
	t.Helper()
	from := &net.TCPAddr{IP: net.IPv4(127, 1, byte(source>>8), byte(source))}
	c, err := (&net.Dialer{LocalAddr: from, Timeout: 10 * time.Second}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// probe is what a kubelet asks: a new connection, and an answer within seconds.
func probe(t *testing.T, address string) {
	t.Helper()
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatalf("a probe beside the other connections: %v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a probe got %s", resp.Status)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// 330 connections with a header of 1 MB that does not end took 330 MB and more
// of a daemon whose limit is 128 MiB.
func TestUnfinishedHeaders(t *testing.T) {
	for _, sources := range []int{1, 330} {
		t.Run(fmt.Sprint(sources, " sources"), func(t *testing.T) {
			address := serve(t, Options{Handler: ok, Limits: Limits{Total: 64, PerSource: 16}})
			header := append([]byte("GET / HTTP/1.1\r\nHost: x\r\nA: "), bytes.Repeat([]byte("a"), 1<<20)...)
			before := heap()
			for i := range 330 {
				c := dial(t, address, 1+i%sources)
				_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
				_, _ = c.Write(header) // The server may close the connection before.
			}
			if got := int64(heap()) - int64(before); got > 8<<20 {
				t.Errorf("330 unfinished headers took %d KiB", got>>10)
			}
			probe(t, address)
		})
	}
}

// A server that bounds headers by 1 MiB gets less of one, and answers a client that sends less.
func TestLimit(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(ok)
	server.Listener.Close()
	server.Listener = Limit(inner, Limits{Total: 64, PerSource: 16}, slog.New(slog.DiscardHandler))
	server.Start()
	t.Cleanup(server.Close)
	for i, size := range []int{maxUnanswered / 2, 2 * maxUnanswered} {
		c := dial(t, inner.Addr().String(), 1)
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nA: "+strings.Repeat("a", size)+"\r\n\r\n")
		answer, err := io.ReadAll(io.LimitReader(c, 12))
		if got := string(answer) == "HTTP/1.1 200"; got != (i == 0) || isTimeout(err) {
			t.Errorf("a header of %d bytes: %q, %v", size, answer, err)
		}
	}
	// The connection that is idle for the longest time has not been answered for that time.
	answered := dial(t, inner.Addr().String(), 2)
	for range 100 {
		_, _ = io.WriteString(answered, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		read(t, answered)
		dial(t, inner.Addr().String(), 2)
		probe(t, inner.Addr().String()) // Then the server has accepted the connection before.
	}
}

func TestIdleConnections(t *testing.T) {
	for _, sources := range []int{1, 1100} {
		t.Run(fmt.Sprint(sources, " sources"), func(t *testing.T) {
			address := serve(t, Options{Handler: ok, Limits: Limits{Total: 64, PerSource: 16}})
			for i := range 1100 {
				dial(t, address, 1+i%sources)
			}
			probe(t, address)
		})
	}
}

// The kubelet and a pod on the host's network have one address.
func TestIdleConnectionsOfTheProbesSource(t *testing.T) {
	address := serve(t, Options{Handler: ok, Limits: Limits{Total: 64, PerSource: 16}})
	for range 100 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	probe(t, address)
}

// A source at its limit takes no place of another, and no request that is being
// answered loses its connection.
func TestLimits(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	address := serve(t, Options{
		Limits: Limits{Total: 4, PerSource: 2},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				begun <- struct{}{}
				<-finish
			}
			_, _ = io.WriteString(w, "ok")
		}),
	})
	other := dial(t, address, 1)
	_, _ = io.WriteString(other, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	read(t, other)
	var slow []net.Conn
	for range 2 {
		c := dial(t, address, 2)
		_, _ = io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		<-begun
		slow = append(slow, c)
	}
	rejected := dial(t, address, 2)
	_ = rejected.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := rejected.Read(make([]byte, 1)); err == nil || n > 0 || isTimeout(err) {
		t.Errorf("a third connection of a source with two requests: %d bytes, %v", n, err)
	}
	close(finish)
	for _, c := range append(slow, other) {
		if c == other {
			_, _ = io.WriteString(other, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		read(t, c)
	}
}

// A body that never comes does not keep a connection.
func TestUnsentBody(t *testing.T) {
	address := serve(t, Options{Handler: ok, Limits: Limits{Total: 1, PerSource: 1}})
	c := dial(t, address, 1)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(readTimeout + 10*time.Second))
	if _, err := io.Copy(io.Discard, c); err != nil && isTimeout(err) {
		t.Errorf("the connection stays: %v", err)
	}
	probe(t, address)
}

func read(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 4096)); err != nil || n == 0 {
		t.Errorf("no answer on %s: %v", c.LocalAddr(), err)
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // As net returns it.
	return ok && e.Timeout()
}
