package doctor

import (
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// keptUntil is how long discovery keeps the Node's labels and taints without a GPU
// driver; zero if it does not.
func (n *clusterNode) keptUntil(cfg *config.NodeConfig) time.Time {
	since, err := time.Parse(time.RFC3339, n.node.Annotations[wellknown.DriverAbsentSince])
	if until := since.Add(cfg.KeepWithoutDriver); err == nil && time.Now().Before(until) {
		return until
	}
	return time.Time{}
}

// checkKept reports that the GPU driver is absent.
func (n *clusterNode) checkKept(l *finding.List, cfg *config.NodeConfig) {
	if until := n.keptUntil(cfg); !until.IsZero() {
		l.Note("Node "+n.node.Name, "", "its GPU driver is absent; labels and taints of the GPUs are kept until %s",
			until.UTC().Format(time.RFC3339))
	}
}

// kept is what the Node should carry: while labels and taints are kept, those that
// are there.
func (in *input) kept(want *labels.Result) *labels.Result {
	m := in.machine
	if in.node == nil || in.node.keptUntil(&m.Config).IsZero() || labels.DriverAbsent(m.Machine, vendors.All()) == "" {
		return want
	}
	carried, taints := nodesync.Carried(in.node.node)
	result, _ := want.Keep(&m.Config, carried, taints)
	return &result
}
