// Package inspect is `heddle inspect`: it shows a machine as a table, as the
// dump, as labels, as resources or as a matrix of path classes. It renders
// what discovery and topo/affinity decided, and decides nothing of its own.
package inspect

import (
	"context"
	"fmt"
	"io"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
)

const usage = `heddle inspect: show what this node, or a dump of another, has.

  heddle inspect                                a table, problems first
  heddle inspect -o matrix                      how near GPUs and HCAs are to each other
  heddle inspect -o json > node.json            the dump: for a bug report, or to replay
  heddle inspect --machine node.json -o labels  the labels and taints that node would get`

// Run runs the command.
func Run(ctx context.Context, args []string, stdout io.Writer) error {
	set := cli.Flags("inspect", usage, stdout)
	var from source.Machine
	from.Register(set.FlagSet)
	format := set.String("o", "table", "output: table, json, labels, resources or matrix")
	if err := set.Read(args, 0); err != nil {
		return err
	}
	m, err := from.Load(ctx)
	if err != nil {
		return err
	}
	text, err := render(m, *format)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

func render(m *machine.Machine, format string) (string, error) {
	switch format {
	case "json":
		b, err := machine.Encode(m)
		if err != nil {
			return "", fmt.Errorf("write dump: %w", err)
		}
		return string(b), nil
	case "matrix":
		return Matrix(m), nil
	}
	return "", cli.Usagef("inspect", "-o %s: not table, json, labels, resources or matrix", format)
}
