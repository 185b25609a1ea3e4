// Package topo is `heddle topo`: it shows what topo-master knows of the fabric.
// It asks one and decides nothing.
package topo

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/export"
)

// NewCommand makes `heddle topo`; without a command below it, it is `heddle
// topo tree`.
func NewCommand() *cobra.Command {
	var at master
	c := treeCommand(&at)
	c.Use, c.Short = "topo", "Show where every cable of the cluster goes, and which gangs run where"
	c.Long = `Show where every cable of the cluster goes, and which gangs run where.

heddle-topo-master answers, through the API server's service proxy or at
--server. One that asks for a token is only reached by --server and
--token-file. Without a command, topo is topo tree.`
	at.register(c)
	c.AddCommand(treeCommand(&at), gangsCommand(&at), miscabledCommand(&at), exportCommand(&at))
	return c
}

// formats are the exports by their names: the short one of the command line,
// that of topo-master's --exports, and that of its API.
func formats() map[string]string {
	return map[string]string{
		"slurm": export.FormatSlurmTree, export.FormatSlurmTree: export.FormatSlurmTree,
		export.FormatSlurmBlock: export.FormatSlurmBlock, export.FormatSlurmYAML: export.FormatSlurmYAML,
		"kueue": export.FormatKueue, export.FormatKueue: export.FormatKueue,
		"kai": export.FormatKAI, export.FormatKAI: export.FormatKAI,
		"hypernode": export.FormatHyperNodes, export.FormatHyperNodes: export.FormatHyperNodes,
		"nodes": export.FormatNodes, "labels": export.FormatNodes, export.FormatNodes: export.FormatNodes,
	}
}

func exportCommand(at *master) *cobra.Command {
	const short = "slurm, slurm-block, slurm-yaml, kueue, kai, hypernode, nodes"
	c := &cobra.Command{
		Use: "export", Short: "Print the tree in the format of another project", Args: cobra.NoArgs,
		Long: `Print the tree in the format of another project: slurm is topology/tree and
slurm-block topology/block of Slurm, slurm-yaml both for topology.yaml, kueue and
kai the Topologies of Kueue and KAI, hypernode the HyperNodes of Volcano, nodes
the labels of the nodes. The names that topo-master's --exports and its API use
are accepted too.`,
		Example: "  heddle topo export --format slurm > /etc/slurm/topology.conf",
	}
	format := c.Flags().String("format", "", "`format` of the export: "+short)
	kind := c.Flags().String("kind", "", "`kind` of the groups that are the blocks of slurm-block; default the lowest")
	cli.Complete(c, "format", "slurm", "slurm-block", "slurm-yaml", "kueue", "kai", "hypernode", "nodes")
	c.RunE = func(c *cobra.Command, _ []string) error {
		path, ok := formats()[*format]
		if !ok {
			return cli.UsageErrorf(c, "invalid --format %q: want one of %s", *format, short)
		}
		body, err := at.get(c, "/v1/export/"+path, *kind)
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
