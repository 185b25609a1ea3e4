// Package httpserve serves HTTP on ports that every pod of the cluster can
// reach: it bounds what a client costs in memory, time and connections, and asks the API
// server who may have an answer, by the bearer token of the request. What is answered is
// the caller's.
package httpserve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// The bounds of one connection. An answer of topo-master about 100,000 nodes is
// 8 MB, which a slow reader gets in writeTimeout.
const (
	maxHeader     = 16 << 10
	headerTimeout = 5 * time.Second
	// readTimeout bounds the body too: without it a client that announces a body
	// and sends none keeps its connection.
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	// maxStreams are the requests at once of an HTTP/2 connection, and maxBuffer
	// what it may send of their bodies.
	maxStreams = 32
	maxBuffer  = 64 << 10
	// grace is how long requests may take that are being answered at the end.
	grace = 3 * time.Second
)

// Options configures Serve.
type Options struct {
	Handler http.Handler
	// TLS is for HTTPS; nil is plain HTTP.
	TLS    *tls.Config
	Limits Limits
	Log    *slog.Logger
}

// Serve answers on a listener until ctx ends, and closes it.
func Serve(ctx context.Context, inner net.Listener, o Options) error {
	var listener net.Listener = newLimiter(inner, o.Limits, o.Log)
	if o.TLS != nil {
		listener = tls.NewListener(listener, o.TLS)
	}
	server := &http.Server{
		Handler: track(o.Handler), MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxBuffer, MaxReceiveBufferPerStream: maxBuffer,
		},
		ConnContext: remember, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", inner.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = server.Shutdown(last) // What is left is closed below.
	_ = server.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", inner.Addr(), err)
	}
	return nil
}

// Probe answers with what is wrong, or "ok".
func Probe(check func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if wrong := check(); wrong != "" {
			http.Error(w, wrong, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // An error means that the client is gone.
	}
}
