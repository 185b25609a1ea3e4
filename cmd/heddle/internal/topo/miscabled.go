package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// miscabled is the object that `heddle topo miscabled` prints.
type miscabled struct {
	Findings []fabric.Finding   `json:"findings"`
	Ignored  []snapshot.Ignored `json:"ignored,omitempty"`
}

func miscabledCommand(at *Master) *cobra.Command {
	c := &cobra.Command{
		Use: "miscabled", Args: cobra.NoArgs,
		Short: "Show every port with a wrong cable; exit code 1 if any",
	}
	output := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, _ []string) error {
		t, err := read[snapshot.Topology](c, at, "/v1/topology")
		if err != nil {
			return err
		}
		output.Names = nil
		for i := range t.Findings {
			output.Names = append(output.Names, "node/"+t.Findings[i].Node)
		}
		output.Names = slices.Compact(slices.Sorted(slices.Values(output.Names)))
		table, problems := cablingTable(t)
		return output.PrintFindings(c, miscabled{t.Findings, t.Ignored}, table+stale(t.StaleSince), problems)
	}
	output.AddWatch(c)
	return c
}

// cablingTable lists the findings and counts the problems among them. A port
// with an unknown switch is shown and is not a problem.
func cablingTable(t *snapshot.Topology) (table string, problems int) {
	rows := [][]string{{"NODE", "WHAT", "RAIL", "HCA", "AGE", "EXPECTED", "FOUND"}}
	for i := range t.Findings {
		f := &t.Findings[i]
		rows = append(rows, []string{f.Node, string(f.Kind), rail(f), hca(f), cli.Age(f.Since), expected(f), found(f)})
		if f.Kind != fabric.Unseen {
			problems++
		}
	}
	for _, i := range t.Ignored {
		rows = append(rows, []string{i.Name, "ignored", "", "", "", "", i.Reason})
		problems++
	}
	if len(rows) == 1 {
		return "Every cable is where it belongs.\n", 0
	}
	return cli.Table(rows), problems
}

// rail returns "3", or "3/1" on plane 1.
func rail(f *fabric.Finding) string {
	if f.Kind == fabric.BadPath || f.Kind == fabric.Degraded && f.HCA == "" {
		return ""
	}
	if f.Plane > 0 {
		return fmt.Sprintf("%d/%d", f.Rail, f.Plane)
	}
	return fmt.Sprint(f.Rail)
}

func hca(f *fabric.Finding) string {
	switch {
	case f.HCA == "":
		return strings.TrimSpace(f.ID + " " + f.Link)
	case f.Port == 0:
		return f.HCA
	}
	return fmt.Sprintf("%s:%d", f.HCA, f.Port)
}

// expected returns the switch that a cable belongs on, or the limit of a link.
func expected(f *fabric.Finding) string {
	if f.Kind == fabric.Degraded {
		return strings.TrimSpace(f.End + " " + f.What + " " + f.Limit)
	}
	return end(f.Expected)
}

// found returns the device at the other end, or what contradicts the port.
func found(f *fabric.Finding) string {
	switch {
	case f.Kind == fabric.Degraded:
		return f.Value
	case f.Kind == fabric.Duplicate:
		return "the GUID is that of node " + f.Other + " too"
	case f.Kind == fabric.BadPath && f.Other != "":
		return "most of " + f.Other + " differ"
	case f.Kind == fabric.BadPath:
		return "the path contradicts the levels"
	}
	return end(f.Found)
}

// end returns a switch by its name, else its ID.
func end(s fabric.Switch) string {
	if s == (fabric.Switch{}) {
		return "-"
	}
	text := cmp.Or(s.Name, s.ID)
	if s.Port != "" {
		text += " port " + s.Port
	}
	return text
}
