// Package inspect is `heddle inspect`: it shows a machine as a table, as the
// dump, as labels, as resources or as a matrix of path classes. It renders
// what discovery and topo/affinity decided, and decides nothing itself.
package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/doctor"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// The formats beside those of every command.
const (
	formatLabels    = "labels"
	formatResources = "resources"
	formatMatrix    = "matrix"
)

// NewCommand makes `heddle inspect`.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "inspect", Short: "Show what this node, or a dump of another, has", Args: cobra.NoArgs,
		Long: `Show what this node, or a dump of another, has.

What the chosen format leaves out, such as a label that cannot be made, is
reported on stderr.`,
		Example: `  heddle inspect                                a table, problems first
  heddle inspect -o matrix                      paths between GPUs and HCAs
  heddle inspect -o json > node.json            a dump, for --machine
  heddle inspect --machine node.json -o labels  labels and taints of its Node`,
	}
	var from source.Flags
	from.Register(c.Flags())
	output := cli.AddOutput(c, formatLabels, formatResources, formatMatrix)
	c.RunE = func(c *cobra.Command, _ []string) error {
		subject, err := from.Load(c.Context())
		if err != nil {
			return err
		}
		dump, err := machine.Encode(subject.Machine)
		if err != nil {
			return fmt.Errorf("encode dump: %w", err)
		}
		if err := output.Print(c, json.RawMessage(dump), render(subject, output.Format)); err != nil {
			return err
		}
		for _, warning := range warnings(subject, output.Format) {
			fmt.Fprintf(c.ErrOrStderr(), "heddle: %s\n", cli.Printable(warning))
		}
		return nil
	}
	return c
}

// warnings are about what the format leaves out: labels that cannot be made, a
// configuration that may be that of another node.
func warnings(s *source.Subject, format string) (all []string) {
	if format == formatLabels {
		for _, p := range labels.Compute(s.Machine, &s.Config, host.Vendors()).Problems {
			all = append(all, "label "+p.Key+" cannot be made: "+p.Reason)
		}
	}
	if s.Unsure != "" && format != cli.FormatJSON && format != cli.FormatYAML {
		all = append(all, s.Unsure)
	}
	return all
}

// render shows the subject in one of the formats for people. HCAs have the roles that the configuration gives them.
func render(s *source.Subject, format string) string {
	m := s.Config.WithRoles(s.Machine)
	switch format {
	case formatLabels:
		return labelLines(s)
	case formatResources:
		return resourceTable(s)
	case formatMatrix:
		return matrix(m)
	}
	missing := labels.Compute(s.Machine, &s.Config, host.Vendors()).Problems
	return table(m, doctor.Problems(s.Machine, &s.Config, missing), format == cli.FormatWide)
}

// labelLines renders what feature-discovery would put on the Node: sorted
// key=value lines, then the taints as "taint key=value:effect".
func labelLines(s *source.Subject) string {
	result := labels.Compute(s.Machine, &s.Config, host.Vendors())
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(result.Labels)) {
		fmt.Fprintf(&b, "%s=%s\n", key, result.Labels[key])
	}
	for _, t := range result.Taints {
		fmt.Fprintf(&b, "taint %s=%s:%s\n", t.Key, t.Value, t.Effect)
	}
	return b.String()
}

// sharedBy returns how many containers can have the same HCA of a resource; "-" for
// resources with exclusive devices, and for shares of GPUs.
func sharedBy(c *config.NodeConfig, resource string) string {
	r := c.RDMA.Resource(resource)
	if r == nil || r.Sharers == 1 {
		return "-"
	}
	return strconv.Itoa(r.Sharers)
}

// resourceTable renders what the device plugins would offer to pods, and why it is
// not more.
func resourceTable(s *source.Subject) string {
	rows := [][]string{{"RESOURCE", "COUNT", "DEVICES", "HEALTHY", "SHARED BY", "WHY NOT MORE"}}
	for _, r := range capacity.Of(s.Machine, &s.Config, host.Vendors()) {
		rows = append(rows, []string{
			r.Name, strconv.FormatInt(r.Count, 10), strconv.Itoa(r.Devices), strconv.Itoa(r.Healthy),
			sharedBy(&s.Config, r.Name), cmp.Or(r.Reason, "-"),
		})
	}
	return cli.Table(rows)
}

// matrix renders the path classes between all GPUs and HCAs, each device's
// processors and NUMA node, and a legend of the classes that occur. Unlike
// nvidia-smi topo -m it needs no driver, and lists soft RDMA devices too.
func matrix(m *machine.Machine) string {
	x := affinity.Of(m)
	if len(x.Devices) == 0 {
		return "no GPU and no HCA\n"
	}
	rails := affinity.Rails(m)
	head := []string{""}
	for _, d := range x.Devices {
		head = append(head, d.Name)
	}
	rows := [][]string{append(head, "CPUs", "NUMA", "ROLE")}
	classes := map[string]bool{}
	for i, d := range x.Devices {
		row := []string{d.Name}
		for j := range x.Devices {
			c := x.At(i, j)
			classes[name(c)] = true
			row = append(row, c.String())
		}
		role := "gpu"
		if !d.GPU {
			role = roleAndRail(d.Role, rails[d.Index])
		}
		rows = append(rows, append(row, cmp.Or(d.CPUs, "-"), node(d.NUMA), role))
	}
	var b strings.Builder
	b.WriteString(cli.Table(rows))
	b.WriteString("\n")
	var legend [][]string
	for _, l := range affinity.Legend() {
		if classes[l[0]] {
			legend = append(legend, []string{l[0], l[1]})
		}
	}
	b.WriteString(cli.Table(legend))
	return b.String()
}

// name returns a class as the legend spells it.
func name(c affinity.Class) string {
	if c.Kind == affinity.NVLink {
		return cmp.Or(c.Maker, "NV") + "#"
	}
	return c.String()
}

func roleAndRail(role machine.Role, rail int) string {
	if rail < 0 {
		return string(role)
	}
	return string(role) + ", rail " + strconv.Itoa(rail)
}

func node(numa *int) string {
	if numa == nil {
		return "-"
	}
	return strconv.Itoa(*numa)
}
