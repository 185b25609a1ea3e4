package featurediscovery

import (
	"flag"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/test/docs"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

func TestDocumentedMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	newMetrics(r)
	docs.Section(t, "../../../..", docs.Observability, "heddle-feature-discovery", docs.Metrics(t, r), *update)
}
