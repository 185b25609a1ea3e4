// Package httpapi answers over HTTP what topo-master knows.
//
// It owns the routes, what a client may cache, and the bounds on what clients
// can make the server do. It reads the newest snapshot and nothing else: no
// request waits for the API server, but for the review of a token where that is
// on, and for GET /v1/why, /v1/pods and /v1/nodes, which list. Shapes are snapshot's and topo/fabric's.
package httpapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// Audience is the audience of tokens for topo-master only.
const Audience = "heddle-topo-master"

// Options configures a Server.
type Options struct {
	Latest *snapshot.Latest
	// Registry has the metrics to expose, and gets the server's own.
	Registry *prometheus.Registry
	// Contact returns the time by which every watch has received something from the API server, or
	// zero; nil leaves it out of the answers.
	Contact func() time.Time
	// History has the Events about cables; nil for none.
	History *informers.History
	// Pending answers why pods have no node.
	Pending *explain.Lister
	// Suspects remembers where gangs failed; nil remembers nothing.
	Suspects *suspect.Memory
	// Consumers answers which pods hold GPUs.
	Consumers *informers.Consumers
	// Alive returns a description of the failure, or an empty string.
	Alive func() string
	// Auth reviews tokens; nil admits all requests. Probes are always admitted.
	Auth *httpserve.Auth
	Log  *slog.Logger
}

// Server answers requests.
type Server struct {
	options Options
	metrics *metrics
	// watchers has a place for each reader of /v1/watch.
	watchers  chan struct{}
	documents cache[*document]
	trees     cache[*fabric.Snapshot]
}

// New returns a server; Run or Handler use it.
func New(o Options) *Server {
	o.Suspects = cmp.Or(o.Suspects, suspect.NewMemory())
	return &Server{
		options: o, metrics: newMetrics(o.Registry), watchers: make(chan struct{}, maxWatchers),
		documents: cache[*document]{of: map[string]versioned[*document]{}},
		trees:     cache[*fabric.Snapshot]{of: map[string]versioned[*fabric.Snapshot]{}},
	}
}

// Handler returns all routes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	routeOf := func(method, path string, h http.HandlerFunc) {
		mux.Handle(method+" "+path, s.metrics.instrument(path, s.admit(h)))
	}
	route := func(path string, h http.HandlerFunc) { routeOf(http.MethodGet, path, h) }
	route("/node_group", s.answered(s.nodeGroup))
	route("/v1/topology", s.answered(s.topology))
	route("/v1/nodes", s.answered(s.nodes))
	route("/v1/nodes/{name}", s.answered(s.node))
	route("/v1/pods", s.answered(s.pods))
	route("/v1/ports", s.answered(s.ports))
	route("/v1/gangs", s.answered(s.gangs))
	route("/v1/why", s.answered(s.why))
	route("/v1/suspects", s.answered(s.suspects))
	routeOf(http.MethodPost, "/v1/plan", s.answered(s.plan))
	route("/v1/export/{format}", s.answered(s.export))
	route("/", s.file)
	mux.Handle("GET /v1/watch", s.admit(s.watch)) // It has no duration.
	metrics := promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
	mux.Handle("GET /metrics", s.admit(metrics.ServeHTTP))
	s.probes(mux)
	return mux
}

// The bounds of connections; the kubelet is the only client of the probes' port.
// Each of maxScrapes takes about 1 MB.
const (
	maxConns           = 1024
	maxConnsPerSource  = 64
	maxProbes          = 64
	maxProbesPerSource = 8
	maxScrapes         = 8
)

// Serve answers on a listener until ctx ends, and closes it. A nil config is plain HTTP.
func (s *Server) Serve(ctx context.Context, listener net.Listener, config *tls.Config) error {
	return httpserve.Serve(ctx, listener, httpserve.Options{
		Handler: s.Handler(), TLS: config, Log: s.options.Log,
		Limits: httpserve.Limits{Total: maxConns, PerSource: maxConnsPerSource},
	})
}

// ServeProbes answers /healthz and /readyz alone, in plain HTTP, on a listener of
// their own until ctx ends, and closes it: what clients do to the API keeps no probe waiting.
func (s *Server) ServeProbes(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	s.probes(mux)
	return httpserve.Serve(ctx, listener, httpserve.Options{
		Handler: mux, Limits: httpserve.Limits{Total: maxProbes, PerSource: maxProbesPerSource}, Log: s.options.Log,
	})
}

func (s *Server) probes(mux *http.ServeMux) {
	mux.Handle("GET /healthz", httpserve.Probe(s.options.Alive))
	mux.Handle("GET /readyz", httpserve.Probe(s.ready))
}

// admit authenticates and authorizes a request.
func (s *Server) admit(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.options.Auth != nil {
			if code := s.options.Auth.Admit(r); code != 0 {
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

// answered passes the newest snapshot to a handler, or answers that none exists yet. Each answer,
// also a 304, reports the seconds since the API server last sent anything.
func (s *Server) answered(next func(http.ResponseWriter, *http.Request, *snapshot.Snapshot)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.options.Contact != nil {
			if at := s.options.Contact(); !at.IsZero() {
				w.Header().Set("Heddle-Contact-Age", strconv.Itoa(int(max(time.Since(at), 0).Seconds())))
			}
		}
		now, _ := s.options.Latest.Get()
		if now == nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "not ready: "+notRead, http.StatusServiceUnavailable)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
		defer cancel()
		next(w, r.WithContext(ctx), now)
	}
}

// answerTimeout bounds a question with the lists of the API server that it waits for.
const answerTimeout = 15 * time.Second

// notRead is the answer before the first snapshot.
const notRead = "the API server has not been read yet"

func (s *Server) ready() string {
	if now, _ := s.options.Latest.Get(); now == nil {
		return notRead
	}
	return ""
}

// metrics count requests.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	watchers prometheus.Gauge
	dropped  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_topology_http_requests_total", Help: "Requests by route and status.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "heddle_topology_http_request_seconds", Help: "Time to answer, by route.",
			Buckets: []float64{50e-6, 200e-6, 1e-3, 5e-3, 20e-3, 100e-3, 1, 10},
		}, []string{"route"}),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_topology_watchers", Help: "Readers of /v1/watch.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_topology_watchers_dropped_total", Help: "Readers of /v1/watch that could not follow.",
		}),
	}
	r.MustRegister(m.requests, m.seconds, m.watchers, m.dropped)
	return m
}

// instrument measures one route.
func (m *metrics) instrument(route string, next http.Handler) http.Handler {
	labels := prometheus.Labels{"route": route}
	return promhttp.InstrumentHandlerDuration(m.seconds.MustCurryWith(labels),
		promhttp.InstrumentHandlerCounter(m.requests.MustCurryWith(labels), next))
}
