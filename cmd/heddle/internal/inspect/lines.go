package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// Labels renders what feature-discovery would put on the Node: sorted
// key=value lines, then the taints as "taint key=value:effect".
func Labels(s *source.Subject) string {
	result := labels.Compute(s.Machine, &s.Config, vendors.All())
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(result.Labels)) {
		fmt.Fprintf(&b, "%s=%s\n", key, result.Labels[key])
	}
	for _, t := range result.Taints {
		fmt.Fprintf(&b, "taint %s=%s:%s\n", t.Key, t.Value, t.Effect)
	}
	return b.String()
}

// Resources renders what the device plugins would offer to pods, and why it is
// not more.
func Resources(s *source.Subject) string {
	rows := [][]string{{"RESOURCE", "COUNT", "DEVICES", "HEALTHY", "WHY NOT MORE"}}
	for _, r := range capacity.Of(s.Machine, &s.Config, vendors.All()) {
		rows = append(rows, []string{
			r.Name, strconv.FormatInt(r.Count, 10), strconv.Itoa(r.Devices), strconv.Itoa(r.Healthy), cli.OrDash(r.Reason),
		})
	}
	return cli.Table(rows)
}
