// Package topo is `heddle topo`: it shows what topo-master knows of the fabric.
// It asks one and decides nothing.
package topo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/export"
)

// NewCommand makes `heddle topo`; without a command below it, it is `heddle
// topo tree`.
func NewCommand() *cobra.Command {
	var at master
	c := treeCommand(&at)
	c.Use, c.Short = "topo", "Show where the cables of the cluster go, and where gangs run"
	c.Long = `Show where the cables of the cluster go, and where gangs run.

heddle-topo-master answers, through the API server's service proxy or at
--topo-master. One that asks for a token is only reached by --topo-master and
--token-file: kubectl create token ACCOUNT --audience=heddle-topo-master.
Without a command, topo is topo tree.`
	at.register(c)
	c.AddCommand(treeCommand(&at), gangsCommand(&at), miscabledCommand(&at), exportCommand(&at))
	return c
}

func exportCommand(at *master) *cobra.Command {
	formats := strings.Join(export.Formats(), ", ")
	c := &cobra.Command{
		Use: "export", Short: "Print the tree in the format of another project", Args: cobra.NoArgs,
		Long: `Print the tree in the format of another project: slurm is topology/tree and
slurm-block topology/block of Slurm, slurm-yaml both for topology.yaml, kueue
and kai the Topologies of Kueue and KAI, hypernode the HyperNodes of Volcano,
labels the labels of the nodes.`,
		Example: "  heddle topo export --format slurm > /etc/slurm/topology.conf",
	}
	format := c.Flags().String("format", "", "`format` of the export: "+formats)
	kind := c.Flags().String("kind", "", "`kind` of the groups that are the blocks of slurm-block; default the lowest")
	cli.Complete(c, "format", export.Formats()...)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !slices.Contains(export.Formats(), *format) {
			return cli.UsageErrorf(c, "invalid --format %q: want one of %s", *format, formats)
		}
		body, err := at.get(c, "/v1/export/"+*format, *kind)
		if err != nil {
			return err
		}
		return cli.Write(c, string(body))
	}
	return c
}

// read asks topo-master for a path and decodes the JSON.
func read[T any](c *cobra.Command, at *master, path string) (*T, error) {
	body, err := at.get(c, path, "")
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("decode topo-master's answer: %w", err)
	}
	return v, nil
}
