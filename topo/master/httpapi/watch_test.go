package httpapi

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabric"
)

// pipes is a listener of connections in memory, without a buffer.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// watchIn opens /v1/watch on a new connection.
func (p *pipes) watchIn(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	client, server := net.Pipe()
	p.conns <- server
	if _, err := io.WriteString(client, "GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return client, bufio.NewReader(client)
}

// nextEvent reads the next one's generation.
func nextEvent(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			generation, _, _ := strings.Cut(strings.TrimPrefix(data, `{"generation":`), ",")
			return generation
		}
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newFixture(t, fabric.ModeSwitchbox), newPipes()
		f.put("dragonfly-1", "n1")
		server := newServer(f)
		server.watchers = make(chan struct{}, 2)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(ctx, p, nil) }()

		conn, quick := p.watchIn(t)
		if got := nextEvent(t, quick); got != "1" {
			t.Errorf("the first event is %s", got)
		}
		// A burst is one event, of the newest.
		<-time.After(pace)
		synctest.Wait()
		f.put("dragonfly-1", "n2")
		if got := nextEvent(t, quick); got != "2" {
			t.Errorf("the second event is %s", got)
		}
		f.put("dragonfly-1", "n3")
		f.put("dragonfly-1", "n4")
		if got := nextEvent(t, quick); got != "4" {
			t.Errorf("after a burst the event is %s", got)
		}

		slow, _ := p.watchIn(t) // It never reads.
		<-time.After(patience + time.Second)
		synctest.Wait()
		if len(server.watchers) != 1 {
			t.Errorf("%d readers; the slow one should be gone", len(server.watchers))
		}
		slow.Close()
		// A reader outlives the time that others have for a request.
		f.put("dragonfly-1", "n5")
		if got := nextEvent(t, quick); got != "5" {
			t.Errorf("after the read timeout the event is %s", got)
		}

		another, r := p.watchIn(t)
		nextEvent(t, r)
		full, r := p.watchIn(t)
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "503") {
			t.Errorf("one reader too many: %q, %v", line, err)
		}
		cancel()
		// Readers are let go at the end.
		go func() { _, _ = io.Copy(io.Discard, quick) }()
		go func() { _, _ = io.Copy(io.Discard, another) }()
		go func() { _, _ = io.Copy(io.Discard, r) }()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, c := range []net.Conn{conn, another, full} {
			c.Close()
		}
	})
}

// deadlines notes those of a connection and the writes between.
type deadlines struct {
	httptest.ResponseRecorder
	calls []string
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.calls = append(d.calls, "deadline in "+map[bool]string{true: "no time", false: "some time"}[at.IsZero()])
	return nil
}

func (d *deadlines) Write(b []byte) (int, error) {
	d.calls = append(d.calls, "write")
	return len(b), nil
}

func TestAnIdleReaderHasNoDeadline(t *testing.T) {
	d := &deadlines{}
	if err := sendEvent(d, "x"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"deadline in some time", "write", "deadline in no time"}, d.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}
