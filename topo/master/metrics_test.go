package master_test

import (
	"flag"
	"testing"

	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

// A replica that leads has the metrics of the tree, of the server and of what it writes.
func TestDocumentedMetrics(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "the report", reports(1))
	get(t, r.url+"/node_group")
	c.lead(t, r, publish.Exports{}, func(o *publish.Options) { o.Registry = r.registry })
	docs.Section(t, "../..", docs.Observability, "heddle-topo-master", docs.Metrics(t, r.registry), *update)
}
