// Package inspect is `heddle inspect`: it shows a machine as a table, as the
// dump, as labels, as resources or as a matrix of path classes. It renders
// what discovery and topo/affinity decided, and decides nothing of its own.
package inspect

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/labels"
)

const usage = `heddle inspect: show what this node, or a dump of another, has.

  heddle inspect                                a table, problems first
  heddle inspect -o matrix                      how near GPUs and HCAs are to each other
  heddle inspect -o json > node.json            the dump: for a bug report, or to replay
  heddle inspect --machine node.json -o labels  the labels and taints that node would get

What is missing from the output for want of something is told on stderr.`

// Run runs the command.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := cli.Flags("inspect", usage, stdout)
	var from source.Flags
	from.Register(set.FlagSet)
	format := set.String("o", "table", "output `FORMAT`: "+strings.Join(formats(), ", "))
	if err := set.Read(args, 0); err != nil {
		return err
	}
	if !slices.Contains(formats(), *format) {
		return cli.Usagef("inspect", "-o %s: not one of %s", *format, strings.Join(formats(), ", "))
	}
	subject, err := from.Load(ctx)
	if err != nil {
		return err
	}
	text, err := Render(subject, *format)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	for _, complaint := range complaints(subject, *format) {
		fmt.Fprintf(stderr, "heddle: %s\n", cli.Printable(complaint))
	}
	return nil
}

// complaints are about what the format does not show: labels that cannot be
// made, a configuration that may be another node's.
func complaints(s *source.Subject, format string) (all []string) {
	if format == "labels" {
		for _, p := range labels.Compute(s.Machine, &s.Config, vendors.All()).Problems {
			all = append(all, "label "+p.Key+" cannot be made: "+p.Reason)
		}
	}
	if s.Doubt != "" && format != "json" {
		all = append(all, s.Doubt)
	}
	return all
}

func formats() []string { return []string{"table", "json", "labels", "resources", "matrix"} }

// Render shows the subject in one of the formats. The dump is what was read;
// in the others, HCAs have the roles that the configuration gives them.
func Render(s *source.Subject, format string) (string, error) {
	m := s.Config.WithRoles(s.Machine)
	switch format {
	case "json":
		b, err := machine.Encode(s.Machine)
		if err != nil {
			return "", fmt.Errorf("write dump: %w", err)
		}
		return string(b), nil
	case "labels":
		return Labels(s), nil
	case "resources":
		return Resources(s), nil
	case "matrix":
		return Matrix(m), nil
	}
	problems := finding.Of(m)
	problems = append(problems, finding.Labels(labels.Compute(s.Machine, &s.Config, vendors.All()).Problems, &s.Config)...)
	finding.Sort(problems)
	return Table(m, problems), nil
}
