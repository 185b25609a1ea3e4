package program

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/heddle-dev/heddle/cmd/internal/buildinfo"
	"github.com/heddle-dev/heddle/internal/httpserve"
)

// NewRegistry returns a registry with the metrics of the process itself, which
// is of this version.
func NewRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(buildinfo.New(version), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Registry is the daemon's. A process of several daemons has the metrics of the process
// once, in its own.
func (f *Flags) Registry(version string) *prometheus.Registry {
	if f.process != nil {
		return prometheus.NewRegistry()
	}
	return NewRegistry(version)
}

// Serve is [serve], or the address of the process that runs other daemons too. What is
// restricted is nil for none.
func (f *Flags) Serve(
	ctx context.Context, log *slog.Logger, address string, g prometheus.Gatherer,
	alive, ready func() string, pods *Restricted,
) error {
	if f.process != nil {
		f.process.join(ctx, f.part, &served{gatherer: g, alive: alive, ready: ready, pods: pods})
		return nil
	}
	return serve(ctx, log, address, g, alive, ready, pods)
}

// They leave room for the kubelet, Prometheus and people, and are small enough
// for the daemon's memory when all connections send headers that never end.
// maxScrapes bounds what scrapes take of it at once, about 1 MB each.
const (
	maxConns          = 64
	maxConnsPerSource = 16
	maxScrapes        = 8
)

// serve answers /metrics, /healthz, /readyz and what is restricted on address until ctx
// ends. alive and ready return what is wrong, empty if nothing is. An empty address
// serves nothing.
func serve(
	ctx context.Context, log *slog.Logger, address string, g prometheus.Gatherer,
	alive, ready func() string, pods restricting,
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
