// Package topo is `heddle topo`: it shows what topo-master knows of the fabric.
// It asks one and decides nothing.
package topo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// NewCommand makes `heddle topo`; without a command below it, it is `heddle
// topo tree`.
func NewCommand() *cobra.Command {
	var at Master
	c := treeCommand(&at)
	c.Use, c.Short = "topo", "Show where the cables of the cluster go, and where gangs run"
	c.Long = `Show where the cables of the cluster go, and where gangs run.

heddle-topo-master answers, through the API server's service proxy or at
--topo-master. One that asks for a token is only reached by --topo-master and
--token-file: kubectl create token ACCOUNT --audience=heddle-topo-master.
Without a command, topo is topo tree.`
	at.Register(c)
	c.AddCommand(treeCommand(&at), gangsCommand(&at), miscabledCommand(&at), suspectsCommand(&at),
		bandwidthCommand(&at), exportCommand(&at))
	return c
}

func exportCommand(at *Master) *cobra.Command {
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
		body, err := at.get(c, "/v1/export/"+*format, "kind", *kind)
		if err != nil {
			return err
		}
		return cli.Write(c, string(body))
	}
	return c
}

// read asks topo-master for a path, with a parameter and its value if any, and decodes the JSON.
func read[T any](c *cobra.Command, at *Master, path string, parameter ...string) (*T, error) {
	body, err := at.get(c, path, parameter...)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("decode topo-master's answer: %w", err)
	}
	return v, nil
}

func gangsCommand(at *Master) *cobra.Command {
	c := &cobra.Command{
		Use: "gangs", Short: "Show gangs: where they run, or why not", Args: cobra.NoArgs,
	}
	output := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, _ []string) error {
		gangs, err := read[snapshot.Gangs](c, at, "/v1/gangs")
		if err != nil {
			return err
		}
		if namespace := at.Cluster.Given(""); namespace != "" {
			gangs.Gangs = slices.DeleteFunc(gangs.Gangs, func(g snapshot.Gang) bool { return g.Namespace != namespace })
		}
		output.Names = nil
		for i := range gangs.Gangs {
			output.Names = append(output.Names, "gang/"+gangs.Gangs[i].Name)
		}
		return output.Print(c, gangs, gangTable(gangs.Gangs, output.Wide())+stale(gangs.StaleSince))
	}
	output.AddWatch(c)
	return c
}

func gangTable(all []snapshot.Gang, wide bool) string {
	if len(all) == 0 {
		return "No pod is in a gang.\n"
	}
	rows := [][]string{{"NAMESPACE", "NAME", "API", "STATE", "PODS", "GPUS", "GROUP", "NODES", "AGE", "WHY"}}
	for i := range all {
		g := &all[i]
		group, why := "-", g.Reason
		if g.Group != nil {
			group = g.Group.Name
		}
		if !g.RejectedSince.IsZero() && !g.RejectedSince.Equal(g.Since) {
			why += ", for " + cli.Age(g.RejectedSince)
		}
		rows = append(rows, []string{
			g.Namespace, g.Name, cmp.Or(string(g.API), "-"), string(g.State), fmt.Sprintf("%d of %d", g.Running, g.Members),
			fmt.Sprint(g.GPUs), group, nodes(g.Nodes, wide), cli.Age(g.Since), why,
		})
	}
	return cli.Table(rows)
}

// nodes are names in short: su2-dgx[1-8], or only how many there are if even
// that is long.
func nodes(names []string, wide bool) string {
	const most = 48
	text := export.Hostlist(names)
	switch {
	case len(names) == 0:
		return "-"
	case utf8.RuneCountInString(text) > most && !wide:
		return fmt.Sprint(len(names))
	}
	return text
}
