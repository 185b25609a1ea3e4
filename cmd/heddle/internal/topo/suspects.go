package topo

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/suspect"
)

func suspectsCommand(at *master) *cobra.Command {
	c := &cobra.Command{
		Use: "suspects", Args: cobra.NoArgs,
		Short: "Show where gangs failed; exit code 1 if a node is suspect",
	}
	output := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, _ []string) error {
		answer, err := read[suspect.Answer](c, at, "/v1/suspects")
		if err != nil {
			return err
		}
		output.Names = nil
		for i := range answer.Suspects {
			output.Names = append(output.Names, answer.Suspects[i].Kind+"/"+answer.Suspects[i].Name)
		}
		table, sure := suspectTable(answer.Suspects)
		return output.PrintFindings(c, answer, table, sure)
	}
	output.AddWatch(c)
	return c
}

// suspectTable lists places with the last failure of each gang, and counts the suspects.
func suspectTable(all []suspect.Place) (table string, sure int) {
	rows := [][]string{{"STATE", "KIND", "NAME", "GANGS", "LAST", "EVIDENCE"}}
	for i := range all {
		p := &all[i]
		if p.State == suspect.Suspect {
			sure++
		}
		texts := make([]string, len(p.Evidence))
		for j := range p.Evidence {
			e := &p.Evidence[j]
			texts[j] = fmt.Sprintf("%s: %s", e.Gang, e.Reason)
			if e.Of > 1 {
				texts[j] += fmt.Sprintf(", one of %d nodes", e.Of)
			}
		}
		rows = append(rows, []string{
			string(p.State), p.Kind, p.Name, fmt.Sprint(len(texts)), cli.Age(p.Evidence[len(texts)-1].Time),
			strings.Join(texts, "; "),
		})
	}
	if len(rows) == 1 {
		return "No node is suspect.\n", 0
	}
	return cli.Table(rows), sure
}
