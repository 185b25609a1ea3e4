package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// yielded explains the labels of ours that others hold alone. Of equal values
// discovery becomes an owner too, so what it does not own and would write it
// has left to them. The Node does not tell what discovery would have written.
func yielded(node *corev1.Node, cfg *config.NodeConfig) []finding.Finding {
	if wrote, _ := applied(node); !wrote {
		return nil
	}
	owners := nodesync.LabelOwners(node)
	var all []finding.Finding
	for _, key := range slices.Sorted(maps.Keys(node.Labels)) {
		by := owners[key]
		if len(by) == 0 || slices.Contains(by, wellknown.FieldManager) || !writes(cfg, key) {
			continue
		}
		all = append(all, finding.Finding{
			Level: finding.Problem, Subject: "label " + key,
			Message: fmt.Sprintf("%s holds it with value %q; heddle-feature-discovery leaves it to them",
				strings.Join(by, " and "), node.Labels[key]),
			Remedy: fmt.Sprintf("kubectl label node %s %s- frees it, unless its writer comes back; "+
				"labelConflict: force takes it.", node.Name, key),
		})
	}
	return all
}

// writes tells whether discovery writes a label under this configuration, on
// some machine.
func writes(cfg *config.NodeConfig, key string) bool {
	d := cfg.Domains
	switch {
	case key == d.Usage():
		return cfg.Usage != config.UsageUnset
	case key == d.ControlPlane():
		return cfg.ControlPlane
	case wellknown.Match(d.MIGResources(), key):
		return cfg.MIG.Strategy == config.MIGMixed
	case key == d.VendorKey(wellknown.MIGStrategy):
		return cfg.MIG.Strategy != config.MIGNone
	}
	return slices.ContainsFunc(labels.Allowed(cfg).Labels, func(pattern string) bool { return wellknown.Match(pattern, key) })
}
