package program

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/internal/buildinfo"
	"github.com/heddle-dev/heddle/internal/httpserve"
)

// NewRegistry returns a registry with the metrics of the process, including its version.
func NewRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(buildinfo.New(version), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// The limits leave room for the kubelet, Prometheus and people, and are small enough for
// the daemon's memory when all connections send endless headers. maxScrapes bounds
// concurrent scrapes, which take about 1 MB each.
const (
	maxConns          = 64
	maxConnsPerSource = 16
	maxScrapes        = 8
)

// Serve answers /metrics, /healthz, /readyz and restricted paths on address until ctx
// ends. alive and ready return what is wrong, or an empty string. An empty address serves
// nothing; pods may be nil.
func Serve(
	ctx context.Context, log *slog.Logger, address string, g prometheus.Gatherer,
	alive, ready func() string, pods *Restricted,
) error {
	if address == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics(g, pods))
	mux.Handle("GET /healthz", httpserve.Probe(alive))
	mux.Handle("GET /readyz", httpserve.Probe(ready))
	mux.Handle("GET /v1/", paths(pods))
	return httpserve.Serve(ctx, listener, httpserve.Options{
		Handler: mux, Limits: httpserve.Limits{Total: maxConns, PerSource: maxConnsPerSource}, Log: log,
	})
}

// ConfigValid returns the metric of a daemon's configuration.
func ConfigValid(daemon string, configs *config.Watcher) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "heddle", Name: "config_valid", ConstLabels: prometheus.Labels{"daemon": daemon},
		Help: "1 if the newest configuration is in use, 0 if the last good one is kept.",
	}, func() float64 {
		if configs.Err() != nil {
			return 0
		}
		return 1
	})
}

// Restricted is an answer of a daemon only for its own node, and to clients elsewhere with a
// token for the path, since it names pods.
type Restricted struct {
	// Metrics are in /metrics beside the others.
	Metrics prometheus.Gatherer
	// Path below /v1/ has a separate answer.
	Path    string
	Handler http.Handler
	// Open admits everyone. Otherwise Auth decides; it is nil without an API server, and then
	// only the node is admitted.
	Open bool
	Auth *httpserve.Auth
}

// admit returns 0, or the HTTP status to reject a request with. The daemons are on the host's
// network, so a connection from a loopback address is from a process of the node, or from the
// kubelet for a port-forward that the API server has authorized. Headers are ignored: clients
// choose them.
func (r *Restricted) admit(request *http.Request) int {
	switch {
	case r.Open || httpserve.Source(request.RemoteAddr).IsLoopback():
		return 0
	case r.Auth == nil:
		return http.StatusServiceUnavailable
	}
	return r.Auth.Admit(request)
}

// metrics answers /metrics: everyone gets those of g. Admitted clients have places of their
// own among the concurrent scrapes, which others cannot take.
func metrics(g prometheus.Gatherer, pods *Restricted) http.Handler {
	scrape := func(g prometheus.Gatherer) http.Handler {
		return promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes / 2})
	}
	open := scrape(g)
	if pods == nil {
		return open
	}
	all := scrape(prometheus.Gatherers{g, pods.Metrics})
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if pods.admit(request) == 0 {
			all.ServeHTTP(w, request)
			return
		}
		open.ServeHTTP(w, request)
	})
}

// paths answers requests below /v1/.
func paths(pods *Restricted) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		if pods == nil || request.URL.Path != pods.Path {
			http.NotFound(w, request)
			return
		}
		code := pods.admit(request)
		if code == 0 {
			pods.Handler.ServeHTTP(w, request)
			return
		}
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, rejection(code, pods.Path), code)
	}
}

// rejection explains to a client how to be admitted.
func rejection(code int, path string) string {
	how := fmt.Sprintf("ask at a loopback address of the node, by `kubectl port-forward`, or with the bearer token "+
		"of a user who may get the path %s, as ClusterRole heddle-metrics-reader allows", path)
	switch code {
	case http.StatusUnauthorized:
		return "missing or invalid token: " + how
	case http.StatusForbidden:
		return "the token's user may not get the path: " + how
	}
	return "the API server cannot review the token: " + how
}
