// Package doctor implements `heddle doctor`: it explains every zero, every excluded device, every
// reader that failed, and everything missing on a Node, and shows which containers have which
// devices.
//
// It first reads an [input]; the checks are functions of it and add findings to a list, in an operator's words. It
// changes nothing.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// NewCommand makes `heddle doctor`.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Show what is wrong, why a resource is 0, and what to do", Args: cobra.NoArgs,
		Long: `Show what is wrong on a node, why a resource is 0, and what to do about it.

Exit code 1 if there is a problem; notes are not problems.`,
		Example: `  heddle doctor                               this host and its device plugin
  heddle doctor --machine node.json           a dump of another host
  heddle doctor --node gpu-1                  a Node, from anywhere
  heddle doctor --machine host --node gpu-1   this host, and what its Node lacks`,
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
	// Node's, and unread why the cluster's configuration could not be read.
	node   *clusterNode
	config config.NodeConfig
	unread error
	// plugin is nil if the device plugin was not asked, or did not answer, which
	// pluginErr is then. here is whether it was asked at its address and not
	// through the API server, and pluginExpected whether the user gave that.
	plugin         *report.Report
	pluginErr      error
	here           bool
	pluginExpected bool
}

// read reads everything that the flags name.
func (f *flags) read(ctx context.Context, set *pflag.FlagSet) (*input, error) {
	in := &input{pluginExpected: set.Changed(pluginFlag)}
	var err error
	if f.node != "" {
		if in.node, err = readNode(ctx, &f.api, f.node); err != nil {
			return nil, err
		}
		f.machine.Of(f.node, in.node.node.Labels)
		if !set.Changed("config") {
			in.unread = f.useCluster(ctx, in.node)
		}
	}
	readsMachine := in.node == nil || set.Changed("machine")
	in.here = in.pluginExpected || readsMachine && set.Lookup("machine").Value.String() == source.Host
	switch {
	case in.here:
		in.plugin, in.pluginErr = askPlugin(ctx, f.pluginURL)
	case in.node != nil && in.node.pod(devicePlugin) != nil:
		in.plugin, in.pluginErr = cluster.Report(ctx, in.node.client, f.node)
	}
	if readsMachine {
		if in.machine, err = f.machine.Load(ctx); err != nil {
			return nil, err
		}
	}
	if in.node == nil {
		return in, nil
	}
	all, err := f.machine.Config()
	if err != nil {
		return nil, err
	}
	labels := in.node.node.Labels
	if in.config = all.Resolve(f.node, labels).ForLabels(labels); in.machine != nil {
		in.config = in.machine.Config
	}
	return in, nil
}

// useCluster takes the configuration that heddle's daemons on a Node have.
func (f *flags) useCluster(ctx context.Context, n *clusterNode) error {
	for _, app := range []string{discovery, devicePlugin} {
		pod := n.pod(app)
		if pod == nil {
			continue
		}
		files, err := cluster.ConfigFiles(ctx, n.client, pod.Namespace, cluster.ConfigNames(&pod.Spec)...)
		if err == nil {
			err = f.machine.Use(files)
		}
		return err
	}
	return nil
}

// Report is the output of doctor.
type Report struct {
	// Node is the name of the node or machine.
	Node string `json:"node"`
	// Resources are the machine's; empty if none was read, and where the device plugin reports what it offers.
	Resources []capacity.Resource `json:"resources"`
	// Findings are problems first.
	Findings Findings `json:"findings"`
	// Plugin is the device plugin's report; nil if it was not asked, or did
	// not answer.
	Plugin *report.Report `json:"devicePlugin,omitempty"`
}

// diagnose runs all checks, and counts the problems.
func diagnose(in *input) (r *Report, problems int) {
	r = &Report{Resources: []capacity.Resource{}, Plugin: in.plugin}
	l := &Findings{}
	var want *labels.Result
	if m := in.machine; m != nil {
		r.Node = m.Machine.Node
		if in.plugin == nil {
			r.Resources = capacity.Of(m.Machine, &m.Config, host.Vendors())
		}
		result := labels.Compute(m.Machine, &m.Config, host.Vendors())
		want = in.kept(&result)
		l.machine(m.Machine, &m.Config, result.Problems)
		if m.Unsure != "" {
			l.note("configuration", "", "%s", m.Unsure)
		}
	}
	if in.unread != nil {
		l.note("configuration", "--config DIR gives it.", "is not known, and taken to be the default one: %v", in.unread)
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
	r.Findings, problems = l.sorted()
	return r, problems
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
