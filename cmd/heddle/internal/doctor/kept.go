package doctor

import (
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// keptUntil returns when discovery stops keeping the Node's labels and taints without a
// GPU driver, or the zero time.
func (n *clusterNode) keptUntil() time.Time {
	since, err := time.Parse(time.RFC3339, n.node.Annotations[wellknown.DriverAbsentSince])
	if until := since.Add(config.KeepWithoutDriver); err == nil && time.Now().Before(until) {
		return until
	}
	return time.Time{}
}

// checkKept reports that the GPU driver is absent.
func (n *clusterNode) checkKept(l *checks.List) {
	if until := n.keptUntil(); !until.IsZero() {
		l.Note("Node "+n.node.Name, "", "its GPU driver is absent; labels and taints of the GPUs are kept until %s",
			until.UTC().Format(time.RFC3339))
	}
}

// checkReleased reports that the GPUs' driver is released.
func (n *clusterNode) checkReleased(l *checks.List) {
	name := n.node.Name
	asked, err := release.Parse(n.node.Annotations[wellknown.GPURelease])
	switch {
	case err != nil:
		l.Problem("Node "+name, "heddle gpu release --node "+name+" --undo", "its GPUs are not released: %v", err)
	case asked.Active(time.Now()):
		which := "any of its GPUs"
		if len(asked.GPUs) > 0 {
			which = strings.Join(asked.GPUs, ", ")
		}
		l.Note("Node "+name, "heddle gpu release --node "+name+" --undo",
			"the GPUs' driver is released until %s; no new pod gets %s", asked.Until.UTC().Format(time.RFC3339), which)
	}
}

// kept adds the Node's current labels and taints while they should be kept.
func (in *input) kept(want *labels.Result) *labels.Result {
	m := in.machine
	if in.node == nil || in.node.keptUntil().IsZero() || labels.DriverAbsent(m.Machine, host.Vendors()) == "" {
		return want
	}
	carried, taints := nodesync.Carried(in.node.node)
	result, _ := want.Keep(&m.Config, carried, taints)
	return &result
}
