// Package validate is `heddle config validate`: it checks a directory with the
// ConfigMap's keys as files, and prints every fault with its place.
package validate

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

// NewCommand makes `heddle config`.
func NewCommand() *cobra.Command {
	parent := &cobra.Command{Use: "config", Short: "Check a configuration", Args: cobra.NoArgs, RunE: cli.NeedCommand}
	parent.AddCommand(&cobra.Command{
		Use: "validate DIR", Short: "Check a directory with the ConfigMap's keys as files",
		Long: `Check a directory with the ConfigMap's keys as files: version, cluster-config,
nodes-config. Every fault is printed as file:line: key: what is wrong. Exit code
1 if there is any.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return run(c, args[0]) },
	})
	return parent
}

func run(cmd *cobra.Command, dir string) error {
	c, err := config.Load(dir)
	faults := Faults(err)
	switch {
	case err != nil && len(faults) == 0:
		return err
	case err == nil:
		return cli.Write(cmd, dir+": valid: "+cli.Count(len(c.Cluster.Labels), "label rule")+" and "+
			cli.Count(len(c.Cluster.RDMA.Resources), "RDMA resource")+" for every node, "+
			cli.Count(len(c.Overrides), "override")+"\n")
	}
	var b strings.Builder
	for _, f := range faults {
		b.WriteString(cli.Printable(filepath.Join(dir, f.Error())) + "\n")
	}
	if err := cli.Write(cmd, b.String()); err != nil {
		return err
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
