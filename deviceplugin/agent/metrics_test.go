package agent

import (
	"flag"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

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

// What everyone can read names no pod, whatever a container has.
func TestMetricsWithoutPods(t *testing.T) {
	r, _ := sharer(t, "gpus: [0, 1]")
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	const name = "a-name-of-a-pod"
	if err := r.consumer(name, "30/4", nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		of    string
		from  prometheus.Gatherer
		names bool
	}{{"everyone's", r.registry, false}, {"the node's", r.pods, true}} {
		families, err := tt.from.Gather()
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for _, family := range families {
			if strings.Contains(family.String(), name) {
				named++
				if !tt.names {
					t.Errorf("%s metric %s names the pod", tt.of, family.GetName())
				}
			}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if key := l.GetName(); !tt.names && (key == "pod" || key == "namespace" || key == "container") {
						t.Errorf("%s metric %s has the label %s", tt.of, family.GetName(), key)
					}
				}
			}
		}
		if tt.names && named < 3 {
			t.Errorf("%d of %d metrics of %s name the pod", named, len(families), tt.of)
		}
	}
}
