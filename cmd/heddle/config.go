package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

// configCommand is `heddle config validate`: it checks a directory with the
// ConfigMap's keys as files, and prints every fault with its place.
func configCommand() *cobra.Command {
	parent := &cobra.Command{Use: "config", Short: "Check a configuration", Args: cobra.NoArgs, RunE: cli.NeedCommand}
	parent.AddCommand(&cobra.Command{
		Use: "validate DIR", Short: "Check a directory with the ConfigMap's keys as files",
		Long: `Check a directory with the ConfigMap's keys as files: version, cluster-config,
nodes-config. Every fault is printed as file:line: key: what is wrong. Exit code
1 if there is any.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return validate(c, args[0]) },
	})
	return parent
}

func validate(cmd *cobra.Command, dir string) error {
	c, err := config.Load(dir)
	if err == nil {
		return cli.Write(cmd, dir+": valid: "+cli.Count(len(c.Cluster.Labels), "label rule")+" and "+
			cli.Count(len(c.Cluster.RDMA.Resources), "RDMA resource")+" for every node, "+
			cli.Count(len(c.Overrides), "override")+"\n")
	}
	faults, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // The list of Load itself.
	if !ok {
		return err
	}
	var b strings.Builder
	for _, f := range faults.Unwrap() {
		b.WriteString(cli.Printable(filepath.Join(dir, f.Error())) + "\n")
	}
	if err := cli.Write(cmd, b.String()); err != nil {
		return err
	}
	return cli.ErrFindings
}
