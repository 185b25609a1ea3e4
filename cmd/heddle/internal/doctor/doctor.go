// Package doctor is `heddle doctor`: it explains every zero, every device that
// was left out, every reader that failed, and what a Node lacks of what it
// should carry, and tells which containers have which devices. It renders what
// packages beside it found and what the device plugin answers, and changes
// nothing.
package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// NewCommand makes `heddle doctor`.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Show what is wrong, why a resource is 0, and what to do about it", Args: cobra.NoArgs,
		Long: `Show what is wrong on a node, why a resource is 0, and what can be done about it.

Exit code 1 if there is a problem; notes are not problems.`,
		Example: `  heddle doctor                               this host, and what its device plugin handed out
  heddle doctor --machine node.json           a dump of another
  heddle doctor --node gpu-1                  a Node, as the API server knows it: from anywhere
  heddle doctor --machine host --node gpu-1   both, and what the Node lacks of what the host has`,
	}
	var from source.Flags
	from.Register(c.Flags())
	var api cluster.Flags
	api.Register(c)
	node := c.Flags().String("node", "", "`name` of a Node to ask the API server about")
	_ = c.RegisterFlagCompletionFunc("node", api.CompleteNodes) // It fails only for a flag that is not there.
	url := c.Flags().String(pluginFlag, pluginURL, "`URL` of heddle-device-plugin's metrics address; asked about this host")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		found, err := run(c.Context(), c.Flags(), &from, &api, *node, *url)
		if err != nil {
			return err
		}
		if err := output.Print(c, found, found.Text()); err != nil {
			return err
		}
		if finding.Problems(found.Findings) > 0 {
			return cli.ErrFindings
		}
		return nil
	}
	c.AddCommand(taintsCommand(&api))
	return c
}

func run(
	ctx context.Context, set *pflag.FlagSet, from *source.Flags, api *cluster.Flags, node, url string,
) (*Report, error) {
	var there *onNode
	if node != "" {
		var err error
		if there, err = ask(ctx, api, node); err != nil {
			return nil, err
		}
		from.Of(node, there.node.Labels)
	}
	looks := there == nil || set.Changed("machine")
	given := set.Changed(pluginFlag)
	var plugin *answer
	if given || looks && set.Lookup("machine").Value.String() == source.Host {
		plugin = askPlugin(ctx, url)
	}
	found, err := look(ctx, from, looks, !set.Changed("config"), there, plugin)
	if err != nil {
		return nil, err
	}
	switch {
	case plugin != nil:
		found.addPlugin(plugin, given || there.offers())
	case there != nil:
		found.addPluginOf(ctx, there)
	}
	return &found, nil
}

// look explains the machine, if it is to be looked at, and the Node, if there
// is one. Without a configuration it goes by the names that are in use.
func look(
	ctx context.Context, from *source.Flags, looks, unnamed bool, there *onNode, plugin *answer,
) (found Report, err error) {
	var notes []finding.Finding
	if unnamed {
		var names resourceNames
		names, notes = namesInUse(there, plugin)
		from.Named(names.gpu, names.hcas)
	}
	if looks {
		subject, err := from.Load(ctx)
		if err != nil {
			return found, err
		}
		found = Machine(subject)
	}
	if unnamed {
		found.countServed(plugin)
		found.Findings = append(found.Findings, notes...)
	}
	if there == nil {
		return found, nil
	}
	all, err := from.Config()
	if err != nil {
		return found, err
	}
	found.addNode(there, all)
	return found, nil
}

// Report is what doctor says.
type Report struct {
	// Node is the name of what it is about.
	Node      string              `json:"node"`
	Resources []capacity.Resource `json:"resources"`
	Findings  []finding.Finding   `json:"findings"`

	// labels are what the machine should have; nil if no machine was read.
	labels *labels.Result
	// Plugin is what the device plugin reports; nil if it was not asked, or did
	// not answer.
	Plugin *report.Report `json:"devicePlugin,omitempty"`
}

// Machine explains a machine under its configuration.
func Machine(s *source.Subject) Report {
	r := Report{Node: s.Machine.Node, Resources: capacity.Of(s.Machine, &s.Config, vendors.All())}
	r.Findings = finding.Of(s.Config.WithRoles(s.Machine))
	result := labels.Compute(s.Machine, &s.Config, vendors.All())
	r.labels = &result
	r.Findings = append(r.Findings, finding.Labels(result.Problems, &s.Config)...)
	if s.Unsure != "" {
		r.Findings = append(r.Findings, finding.Finding{Level: finding.Note, Subject: "configuration", Message: s.Unsure})
	}
	finding.Sort(r.Findings)
	return r
}

// Text renders the report: a verdict, the resources with the reason for what
// is missing, and the findings, problems first.
func (r *Report) Text() string {
	var b strings.Builder
	problems := finding.Problems(r.Findings)
	notes := len(r.Findings) - problems
	fmt.Fprintf(&b, "%s: %s, %s\n", cli.Printable(r.Node), cli.Count(problems, "problem"),
		cli.Count(notes, "note"))
	if len(r.Resources) > 0 {
		rows := [][]string{{"RESOURCE", "COUNT", "WHY NOT MORE"}}
		for _, res := range r.Resources {
			reason := res.Reason
			if reason == "" {
				reason = "-"
			}
			rows = append(rows, []string{res.Name, strconv.FormatInt(res.Count, 10), reason})
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
