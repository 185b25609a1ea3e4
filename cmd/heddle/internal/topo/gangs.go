package topo

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func gangsCommand(at *master) *cobra.Command {
	c := &cobra.Command{
		Use: "gangs", Short: "Show gangs: where they run, or why not", Args: cobra.NoArgs,
	}
	output := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, _ []string) error {
		gangs, err := read[snapshot.Gangs](c, at, "/v1/gangs")
		if err != nil {
			return err
		}
		if namespace := at.cluster.Given(""); namespace != "" {
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
