// Package doctor is `heddle doctor`: it explains every zero, every device that
// was left out, every reader that failed, and what a Node lacks of what it
// should carry, and tells which containers have which devices. It renders what
// packages beside it found and what the device plugin answers, and changes
// nothing.
package doctor

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/labels"
)

const usage = `heddle doctor: what is wrong here, and what can be done about it?

  heddle doctor                               this host, and what its device plugin handed out
  heddle doctor --machine node.json           a dump of another
  heddle doctor --node gpu-1                  a Node, as the API server knows it: from anywhere
  heddle doctor --machine host --node gpu-1   both, and what the Node lacks of what the host has
  heddle doctor taints --if gpuProduct --node gpu-1
                                              who could not come back if that taint were set

Exit code 1 if there is a problem; notes are not problems.`

// Run runs the command.
func Run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 && args[0] == "taints" {
		return runTaints(ctx, args[1:], stdout)
	}
	set := cli.Flags("doctor", usage, stdout)
	var from source.Flags
	from.Register(set.FlagSet)
	var api cluster.Flags
	api.Register(set.FlagSet)
	node := set.String("node", "", "`NAME` of a Node to ask the API server about")
	url := set.String(pluginFlag, pluginURL, "`URL` of heddle-device-plugin's metrics address; asked about this host")
	if err := set.Read(args, 0); err != nil {
		return err
	}
	var there *onNode
	if *node != "" {
		var err error
		if there, err = ask(ctx, &api, *node); err != nil {
			return err
		}
		from.Of(*node, there.node.Labels)
	}
	looks := there == nil || set.Given("machine")
	given := set.Given(pluginFlag)
	var plugin *answer
	if given || looks && set.Lookup("machine").Value.String() == source.Host {
		plugin = askPlugin(ctx, *url)
	}
	found, err := look(ctx, &from, looks, !set.Given("config"), there, plugin)
	if err != nil {
		return err
	}
	switch {
	case plugin != nil:
		found.addPlugin(plugin, given || there.offers())
	case there != nil:
		found.addPluginOf(ctx, there)
	}
	if err := say(stdout, "%s", found.Text()); err != nil {
		return err
	}
	if finding.Problems(found.Findings) > 0 {
		return cli.ErrFindings
	}
	return nil
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
	Node      string
	Resources []capacity.Resource
	Findings  []finding.Finding

	// labels are what the machine should have; nil if no machine was read.
	labels *labels.Result
	// plugin is what the device plugin tells; nil if it was not asked, or did
	// not answer.
	plugin *report.Report
}

// Machine explains a machine under its configuration.
func Machine(s *source.Subject) Report {
	r := Report{Node: s.Machine.Node, Resources: capacity.Of(s.Machine, &s.Config, vendors.All())}
	r.Findings = finding.Of(s.Config.WithRoles(s.Machine))
	result := labels.Compute(s.Machine, &s.Config, vendors.All())
	r.labels = &result
	r.Findings = append(r.Findings, finding.Labels(result.Problems, &s.Config)...)
	if s.Doubt != "" {
		r.Findings = append(r.Findings, finding.Finding{Level: finding.Note, Subject: "configuration", Says: s.Doubt})
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
		b.WriteString("\n" + cli.Table(rows, 2))
	}
	if r.plugin != nil {
		b.WriteString(handedOut(r.plugin))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n%s  %s\n  %s\n", f.Level, cli.Printable(f.Subject), cli.Printable(f.Says))
		if f.Do != "" {
			fmt.Fprintf(&b, "  -> %s\n", cli.Printable(f.Do))
		}
	}
	return b.String()
}
