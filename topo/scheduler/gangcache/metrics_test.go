package gangcache

import (
	"flag"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

// The plugin has these metrics and those of shares.
func TestDocumentedMetrics(t *testing.T) {
	r, m, c := prometheus.NewRegistry(), NewMetrics(), config.Default()
	if err := m.Register(r); err != nil {
		t.Fatal(err)
	}
	if err := sgpu.New(&c, config.PlacementBinpack).Report(slog.New(slog.DiscardHandler), r); err != nil {
		t.Fatal(err)
	}
	m.Plans.WithLabelValues("placed").Observe(1)
	m.Rejected.WithLabelValues("default", "train").Set(1)
	m.TreeAge.WithLabelValues().Set(1)
	docs.Section(t, "../../..", docs.Observability, "heddle-scheduler", docs.Metrics(t, r), *update)
}
