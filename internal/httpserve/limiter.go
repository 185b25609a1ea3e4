package httpserve

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits bound the connections of a server. At a limit a new connection takes
// the place of the one that has been idle for the longest time; if none is idle,
// the new one is closed.
type Limits struct {
	// Total are the connections of all clients, PerSource those of one address.
	Total, PerSource int
}

// limiter accepts connections within limits.
type limiter struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu      sync.Mutex // Guards all below, and what conns count.
	open    map[*conn]struct{}
	sources map[netip.Addr]int
	warn    rate.Sometimes
}

const (
	// warnEvery is the least time between two warnings about a limit.
	warnEvery = time.Minute
	// maxUnanswered bounds the bytes that a client sends before it gets any: the headers of a server
	// that bounds them less. A TLS handshake takes a few KiB of them.
	maxUnanswered = 64 << 10
)

var errUnanswered = errors.New("client sent too much before an answer")

// Limit bounds the connections that a listener accepts, and what each sends before it gets an answer.
// It is for servers other than [Serve]: to it, a connection is idle since its last answer.
func Limit(inner net.Listener, limits Limits, log *slog.Logger) net.Listener {
	return newLimiter(inner, limits, log)
}

func newLimiter(inner net.Listener, limits Limits, log *slog.Logger) *limiter {
	return &limiter{
		Listener: inner, limits: limits, log: log, open: map[*conn]struct{}{}, sources: map[netip.Addr]int{},
		warn: rate.Sometimes{Interval: warnEvery},
	}
}

// conn leaves its limiter when it is closed.
type conn struct {
	net.Conn
	limiter *limiter
	source  netip.Addr
	// requests are being answered; one with an unfinished header is not.
	requests int
	// idle is since when there are none.
	idle time.Time
	// unanswered are the bytes read since the last write.
	unanswered atomic.Int64
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	if c.unanswered.Load() > maxUnanswered {
		return 0, errUnanswered
	}
	n, err := c.Conn.Read(p)
	c.unanswered.Add(int64(n))
	return n, err //nolint:wrapcheck // As Close.
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	c.unanswered.Store(0)
	c.count(0)
	return c.Conn.Write(p) //nolint:wrapcheck // As Close.
}

// Accept waits for the next connection that there is a place for.
func (l *limiter) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // http.Server asks for its type.
		}
		c := &conn{Conn: inner, limiter: l, source: Source(inner.RemoteAddr().String()), idle: time.Now()}
		replaced, ok := l.admit(c)
		if replaced != nil {
			_ = replaced.Close()
		}
		if ok {
			return c, nil
		}
		_ = inner.Close()
	}
}

// admit gives a connection a place, if need be that of another, which it returns.
func (l *limiter) admit(c *conn) (replaced *conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ofSource := l.sources[c.source] >= l.limits.PerSource
	if ofSource || len(l.open) >= l.limits.Total {
		replaced = l.oldestIdle(c.source, ofSource)
		l.warn.Do(func() {
			l.log.WarnContext(context.Background(), "too many connections, closing idle ones",
				"address", l.Addr().String(), "source", c.source.String(), "of_source", l.sources[c.source], "open", len(l.open))
		})
		if replaced == nil {
			return nil, false
		}
		l.remove(replaced)
	}
	l.open[c] = struct{}{}
	l.sources[c.source]++
	return replaced, true
}

// oldestIdle returns the connection that has been idle for the longest time, of all
// or of one source; nil if none is idle.
func (l *limiter) oldestIdle(source netip.Addr, ofSource bool) (oldest *conn) {
	for c := range l.open {
		switch {
		case c.requests > 0 || ofSource && c.source != source:
		case oldest == nil || c.idle.Before(oldest.idle):
			oldest = c
		}
	}
	return oldest
}

// remove is called with the lock; it may be called again.
func (l *limiter) remove(c *conn) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if l.sources[c.source]--; l.sources[c.source] == 0 {
		delete(l.sources, c.source)
	}
}

// connKey is of the *conn in the context of its requests.
type connKey struct{}

// remember returns the server's ConnContext.
func remember(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// track keeps the connections of requests that are being answered. The server's
// ConnState does not serve: to it a connection is active while the server waits
// for the client to read that its header was too long.
func track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.count(1)
			defer c.count(-1)
		}
		next.ServeHTTP(w, r)
	})
}

func (c *conn) count(requests int) {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.requests += requests
	c.idle = time.Now()
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.remove(c)
	c.limiter.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // The server's own.
}

// Source returns the address of a client by that of its connection, such as
// [http.Request.RemoteAddr]; the zero Addr stands for all that have none.
func Source(remote string) netip.Addr {
	at, _ := netip.ParseAddrPort(remote)
	return at.Addr().Unmap().WithZone("")
}
