// Package doctor implements `heddle doctor`: it explains every zero, every excluded device, every
// reader that failed, and everything missing on a Node, and shows which containers have which
// devices.
//
// It first reads an [input]; the checks are functions of it and add findings to a list. It changes
// nothing.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// NewCommand makes `heddle doctor`.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Show what is wrong, why a resource is 0, and what to do about it", Args: cobra.NoArgs,
		Long: `Show what is wrong on a node, why a resource is 0, and what can be done about it.

Exit code 1 if there is a problem; notes are not problems.`,
		Example: `  heddle doctor                               this host, and what its device plugin allocated
  heddle doctor --machine node.json           a dump of another
  heddle doctor --node gpu-1                  a Node, as the API server knows it: from anywhere
  heddle doctor --machine host --node gpu-1   both, and what the Node lacks of what the host has`,
	}
	var f flags
	f.machine.Register(c.Flags())
	f.api.Register(c)
	node := f.api.NodeFlag(c, "", "`name` of a Node to ask the API server about")
	c.Flags().StringVar(&f.pluginURL, pluginFlag, defaultPluginURL,
		"`URL` of heddle-device-plugin's metrics address; asked about this host")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		f.node = *node
		in, err := f.read(c.Context(), c.Flags())
		if err != nil {
			return err
		}
		r, problems := diagnose(in)
		return output.PrintFindings(c, r, r.Text(problems), problems)
	}
	c.AddCommand(taintsCommand(&f.api))
	return c
}

// flags name what to read.
type flags struct {
	machine         source.Flags
	api             cluster.Flags
	node, pluginURL string
}

// input is the input of the checks.
type input struct {
	// machine and its configuration; nil if none was read.
	machine *source.Subject
	// node is the Node with its pods; nil if the API server was not asked. config is the
	// Node's.
	node   *clusterNode
	config config.NodeConfig
	// plugin is nil if the device plugin was not asked, or did not answer, which
	// pluginErr is then. here is whether it was asked at its address and not
	// through the API server, and pluginExpected whether the user gave that.
	plugin         *report.Report
	pluginErr      error
	here           bool
	pluginExpected bool
	// named is whether the configuration is given. If not, names has the names in
	// use, and the device plugin of this host has counts.
	named  bool
	names  resourceNames
	counts []report.Resource
}

// read reads everything that the flags name.
func (f *flags) read(ctx context.Context, set *pflag.FlagSet) (*input, error) {
	// A bundle has the configuration, and is of another moment than a plugin's answer.
	bundled := set.Changed("bundle")
	in := &input{named: set.Changed("config") || bundled}
	if f.node != "" {
		var err error
		if in.node, err = readNode(ctx, &f.api, f.node); err != nil {
			return nil, err
		}
		f.machine.Of(f.node, in.node.node.Labels)
	}
	readsMachine := in.node == nil || bundled || set.Changed("machine")
	in.here = set.Changed(pluginFlag) ||
		readsMachine && !bundled && set.Lookup("machine").Value.String() == source.Host
	switch {
	case in.here:
		in.plugin, in.pluginErr = askPlugin(ctx, f.pluginURL)
		in.pluginExpected = set.Changed(pluginFlag)
	case in.node != nil && in.node.pod(devicePlugin) != nil:
		in.plugin, in.pluginErr = cluster.Report(ctx, in.node.client, f.node)
	}
	if !in.named {
		switch {
		case in.here && in.plugin != nil:
			in.names, in.counts = namesServed(in.plugin), in.plugin.Resources
		case in.node != nil:
			in.names = namesOffered(in.node.node)
		}
		f.machine.Named(in.names.gpu, in.names.hcas)
	}
	if readsMachine {
		var err error
		if in.machine, err = f.machine.Load(ctx); err != nil {
			return nil, err
		}
	}
	return in, f.resolve(in)
}

// resolve finds the configuration of a node of the cluster, with the names of its
// GPUs' maker.
func (f *flags) resolve(in *input) error {
	if in.node == nil {
		return nil
	}
	all, err := f.machine.Config()
	if err != nil {
		return err
	}
	labels := in.node.node.Labels
	if in.config = all.Resolve(f.node, labels).ForLabels(labels); in.machine != nil {
		in.config = all.Resolve(f.node, labels).For(in.machine.Machine)
	}
	return nil
}

// Report is the output of doctor.
type Report struct {
	// Node is the name of the node or machine.
	Node string `json:"node"`
	// Resources are the machine's; empty if none was read.
	Resources []capacity.Resource `json:"resources"`
	// Findings are problems first.
	Findings checks.List `json:"findings"`
	// Plugin is the device plugin's report; nil if it was not asked, or did
	// not answer.
	Plugin *report.Report `json:"devicePlugin,omitempty"`
}

// diagnose runs all checks, and counts the problems.
func diagnose(in *input) (r *Report, problems int) {
	r = &Report{Resources: []capacity.Resource{}, Plugin: in.plugin}
	l := &checks.List{}
	var want *labels.Result
	if m := in.machine; m != nil {
		r.Node = m.Machine.Node
		r.Resources = resources(in)
		result := labels.Compute(m.Machine, &m.Config, host.Vendors())
		want = in.kept(&result)
		corrected := m.Config.WithRoles(m.Machine)
		l.Machine(corrected)
		l.Roles(corrected, &m.Config.RDMA.Roles)
		l.NotServed(corrected, &m.Config)
		l.Labels(result.Problems, &m.Config)
		if m.Unsure != "" {
			l.Note("configuration", "", "%s", m.Unsure)
		}
	}
	if !in.named {
		in.names.check(l)
	}
	if in.node != nil {
		r.Node = in.node.node.Name
		in.node.check(l, &in.config, want)
	}
	if in.plugin != nil {
		r.Node = cmp.Or(r.Node, in.plugin.Node)
		checkPlugin(l, in.plugin)
	} else if in.pluginErr != nil {
		in.checkSilence(l)
	}
	r.Findings, problems = l.Sorted()
	return r, problems
}

// resources lists what the machine offers. What the device plugin of this host
// reports wins where no configuration is given: how many share an HCA, and which
// are chosen, only it knows then.
func resources(in *input) []capacity.Resource {
	all := capacity.Of(in.machine.Machine, &in.machine.Config, host.Vendors())
	for i := range all {
		at := slices.IndexFunc(in.counts, func(s report.Resource) bool {
			return s.Name == all[i].Name && s.Kind == report.KindHCA
		})
		if at >= 0 {
			all[i].Count, all[i].Reason = int64(in.counts[at].Allocatable), in.counts[at].Reason
		}
		if in.plugin != nil && slices.Contains(in.plugin.Unserved, all[i].Name) {
			all[i].Count, all[i].Reason = 0, "the device plugin does not serve it: see below"
		}
	}
	return all
}

// Text renders the report: a summary, the resources with reasons for missing ones, the allocations,
// and the findings, problems first.
func (r *Report) Text(problems int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %s\n", cli.Printable(r.Node), cli.Count(problems, "problem"),
		cli.Count(len(r.Findings)-problems, "note"))
	if len(r.Resources) > 0 {
		rows := [][]string{{"RESOURCE", "COUNT", "WHY NOT MORE"}}
		for _, res := range r.Resources {
			rows = append(rows, []string{res.Name, strconv.FormatInt(res.Count, 10), cmp.Or(res.Reason, "-")})
		}
		b.WriteString("\n" + cli.Table(rows))
	}
	if r.Plugin != nil {
		b.WriteString(handedOut(r.Plugin))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n%s  %s\n  %s\n", f.Level, cli.Printable(f.Subject), cli.Printable(f.Message))
		if f.Remedy != "" {
			fmt.Fprintf(&b, "  -> %s\n", cli.Printable(f.Remedy))
		}
	}
	return b.String()
}
