// Package validate is `heddle config`: it checks a directory with the
// ConfigMap's keys as files, and prints every fault with its place.
package validate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

const usage = `heddle config validate: check a configuration.

  heddle config validate DIR

DIR has the ConfigMap's keys as files: version, cluster-config, nodes-config.
Every fault is printed as file:line: key: what is wrong. Exit code 1 if there
is any.`

// Run runs the command.
func Run(_ context.Context, args []string, stdout io.Writer) error {
	set := cli.Flags("config", usage, stdout)
	if err := set.Read(args, 2); err != nil {
		return err
	}
	words := set.Arguments()
	if len(words) != 2 || words[0] != "validate" {
		return cli.Usagef("config", "config: the only use is: heddle config validate DIR")
	}
	dir := words[1]
	c, err := config.Load(dir)
	faults := Faults(err)
	switch {
	case err != nil && len(faults) == 0:
		return err
	case err == nil:
		if _, err := fmt.Fprintf(stdout, "%s: valid: %s and %s for every node, %s\n", dir,
			cli.Count(len(c.Cluster.Labels), "label rule"), cli.Count(len(c.Cluster.RDMA.Resources), "RDMA resource"),
			cli.Count(len(c.Overrides), "override")); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		return nil
	}
	for _, f := range faults {
		if _, err := fmt.Fprintln(stdout, cli.Printable(filepath.Join(dir, f.Error()))); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	return cli.ErrFindings
}

// Faults are all faults in an error of [config.Load], in its order.
func Faults(err error) []*config.Fault {
	switch e := err.(type) { //nolint:errorlint // A tree of errors is walked, not matched.
	case nil:
		return nil
	case *config.Fault:
		return []*config.Fault{e}
	case interface{ Unwrap() []error }:
		var all []*config.Fault
		for _, part := range e.Unwrap() {
			all = append(all, Faults(part)...)
		}
		return all
	}
	if fault, ok := errors.AsType[*config.Fault](err); ok {
		return []*config.Fault{fault}
	}
	return nil
}
