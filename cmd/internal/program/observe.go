package program

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

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
