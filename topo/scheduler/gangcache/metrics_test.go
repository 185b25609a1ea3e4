package gangcache

import (
	"flag"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/docs"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

// The plugin has these metrics and those of shares.
func TestDocumentedMetrics(t *testing.T) {
	r, m := prometheus.NewRegistry(), NewMetrics()
	if err := m.Register(r); err != nil {
		t.Fatal(err)
	}
	m.IgnoredAnnotations.WithLabelValues(wellknown.SGPUBound).Inc()
	m.Plans.WithLabelValues("placed").Observe(1)
	m.Rejected.WithLabelValues("default", "train").Set(1)
	m.TreeAge.WithLabelValues().Set(1)
	docs.Section(t, "../../..", docs.Observability, "heddle-scheduler", docs.Metrics(t, r), *update)
}
