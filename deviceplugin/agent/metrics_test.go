package agent

import (
	"flag"
	"testing"

	"github.com/heddle-dev/heddle/test/docs"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

// An agent that serves a resource has the metrics of its parts and of the resource.
func TestDocumentedMetrics(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.admit("train", map[string]int{gpus: 1})
	r.start("train")
	docs.Section(t, "../..", docs.Observability, "heddle-device-plugin", docs.Metrics(t, r.registry), *update)
	docs.Section(t, "../..", docs.Observability, "heddle-device-plugin-pods", docs.Metrics(t, r.pods), *update)
}
