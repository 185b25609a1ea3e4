package topoworker

import (
	"flag"
	"log/slog"
	"testing"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/docs"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

func TestDocumentedMetrics(t *testing.T) {
	o := options{dryRun: true, Host: program.Host{Options: host.Options{NodeName: "n1"}, Machine: h800}}
	p, err := wire(&o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	docs.Section(t, "../../../..", docs.Observability, "heddle-topo-worker", docs.Metrics(t, p.registry), *update)
}
