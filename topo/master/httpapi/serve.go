// Package httpapi answers over HTTP what topo-master knows.
//
// It owns the routes, what a client may cache, and the bounds on what clients
// can make the server do. It reads the current view and nothing else: no
// request waits for the API server, but for the review of a token where that is
// on. Shapes are view's and topo/fabric's.
package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// Views is where the current view comes from: master.Master.
type Views interface {
	// Current is the last view, nil before the first, and a channel that is
	// closed when there is another.
	Current() (v *snapshot.Snapshot, next <-chan struct{})
}

// Gate says who may ask.
type Gate interface {
	// Admit returns 0, or the HTTP status to refuse a request with.
	Admit(r *http.Request) int
}

// Options are what a Server needs.
type Options struct {
	Views Views
	// Templates are those of the Node labels; the first is Kueue's. None means
	// export.DefaultTemplate.
	Templates []export.Template
	// Page is served at /; its index.html is the first to be seen.
	Page fs.FS
	// Policy is the Content-Security-Policy of those files; "" for none.
	Policy string
	// Registry has the metrics to show, and gets the server's own.
	Registry *prometheus.Registry
	// Contact is how old what is known may be: when the API server last said
	// anything on each watch, zero for never; nil
	// if that is not to be told.
	Contact func() time.Time
	// Alive and Ready say what is wrong, "" if nothing is.
	Alive, Ready func() string
	// Gate is nil if everyone may ask. Probes always may.
	Gate Gate
	Log  *slog.Logger
}

// Server answers.
type Server struct {
	options Options
	metrics *metrics
	buffers buffers
	// watchers has a place for each reader of /v1/watch.
	watchers chan struct{}
}

// New returns a server; Run or Handler use it.
func New(o Options) *Server {
	if len(o.Templates) == 0 {
		o.Templates = []export.Template{export.DefaultTemplate}
	}
	return &Server{options: o, metrics: newMetrics(o.Registry), watchers: make(chan struct{}, maxWatchers)}
}

// Handler is all routes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	route := func(path string, h http.HandlerFunc) {
		mux.Handle("GET "+path, s.metrics.count(path, s.admit(h)))
	}
	route("/node_group", s.dated(s.nodeGroup))
	route("/v1/topology", s.dated(s.topology))
	route("/v1/nodes/{name}", s.dated(s.node))
	route("/v1/gangs", s.dated(s.gangs))
	route("/v1/export/{format}", s.dated(s.export))
	mux.Handle("GET /v1/watch", s.admit(s.watch)) // It has no duration.
	mux.Handle("GET /metrics", s.admit(promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{}).ServeHTTP))
	mux.Handle("GET /healthz", probe(s.options.Alive))
	mux.Handle("GET /readyz", probe(s.options.Ready))
	mux.Handle("GET /", s.metrics.count("/", s.admit(s.page(bundle(s.options.Page)))))
	return mux
}

// The server's bounds. A full answer of 100,000 nodes is 8 MB.
const (
	headerTimeout = 5 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	maxConns      = 1024
)

// Run answers on address until ctx ends. A nil config is plain HTTP.
func (s *Server) Run(ctx context.Context, address string, config *tls.Config) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return s.Serve(ctx, listener, config)
}

// Serve answers on a listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, listener net.Listener, config *tls.Config) error {
	listener = limit(listener, maxConns)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	_ = server.Shutdown(grace) // What is left is closed below.
	_ = server.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// admit asks the gate first.
func (s *Server) admit(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.options.Gate != nil {
			if code := s.options.Gate.Admit(r); code != 0 {
				if code == http.StatusUnauthorized {
					w.Header().Set("WWW-Authenticate", "Bearer")
				}
				http.Error(w, http.StatusText(code), code)
				return
			}
		}
		next(w, r)
	}
}

// dated says in each answer, also in a 304, how many seconds ago the API server
// last said anything.
func (s *Server) dated(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.options.Contact != nil {
			if at := s.options.Contact(); !at.IsZero() {
				w.Header().Set("Heddle-Contact-Age", strconv.Itoa(int(max(time.Since(at), 0).Seconds())))
			}
		}
		next(w, r)
	}
}

// current is the view to answer from; without one it answers itself.
func (s *Server) current(w http.ResponseWriter) *snapshot.Snapshot {
	v, _ := s.options.Views.Current()
	if v == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "not ready: the API server has not been read yet", http.StatusServiceUnavailable)
	}
	return v
}

func probe(check func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if wrong := check(); wrong != "" {
			http.Error(w, wrong, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // A client that went away is no concern.
	}
}
