package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// suspects is the object that `heddle topo suspects` prints.
type suspects struct {
	Suspects []suspectPlace `json:"suspects"`
}

// suspectPlace is a node or a group with all that speaks against it: gangs that failed there, and its cables.
type suspectPlace struct {
	suspect.Place
	Findings []fabric.Finding `json:"findings,omitempty"`
	// Next is the command to run next.
	Next string `json:"next"`
}

func suspectsCommand(at *Master) *cobra.Command {
	c := &cobra.Command{
		Use: "suspects", Args: cobra.NoArgs,
		Short: "Show where gangs fail or cables are bad; exit code 1 if any",
	}
	output := cli.AddOutput(c, cli.FormatName)
	c.RunE = func(c *cobra.Command, _ []string) error {
		answer, err := read[suspect.Answer](c, at, "/v1/suspects")
		if err != nil {
			return err
		}
		t, err := read[snapshot.Topology](c, at, "/v1/topology")
		if err != nil {
			return err
		}
		all := joined(answer.Suspects, t.Findings)
		output.Names = nil
		for i := range all {
			output.Names = append(output.Names, all[i].Kind+"/"+all[i].Name)
		}
		table, sure := suspectTable(all)
		return output.PrintFindings(c, suspects{all}, table, sure)
	}
	output.AddWatch(c)
	return c
}

// joined returns places and the nodes of findings as one list, the one with the most evidence first. A finding counts
// as much as a failed gang.
func joined(places []suspect.Place, findings []fabric.Finding) []suspectPlace {
	all := make([]suspectPlace, 0, len(places))
	for i := range places {
		next := "heddle fabric test --nodes " + places[i].Name + " --image IMAGE"
		if places[i].Kind == suspect.KindGroup {
			next = "heddle fabric test --group " + places[i].Name + " --image IMAGE"
		}
		all = append(all, suspectPlace{Place: places[i], Next: next})
	}
	for i := range findings {
		f := &findings[i]
		if f.Kind == fabric.Unseen {
			continue
		}
		is := func(p suspectPlace) bool { return p.Kind == suspect.KindNode && p.Name == f.Node }
		at := slices.IndexFunc(all, is)
		if at < 0 {
			at = len(all)
			all = append(all, suspectPlace{Place: suspect.Place{Kind: suspect.KindNode, Name: f.Node}})
		}
		p := &all[at]
		p.State, p.Next, p.Findings = suspect.Suspect, "heddle doctor --node "+f.Node, append(p.Findings, *f)
		p.Score++
	}
	slices.SortStableFunc(all, func(a, b suspectPlace) int {
		return cmp.Or(-cmp.Compare(a.State, b.State), cmp.Compare(b.Score, a.Score), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// suspectTable lists places with their evidence, and counts the suspects.
func suspectTable(all []suspectPlace) (table string, sure int) {
	rows := [][]string{{"STATE", "KIND", "NAME", "GANGS", "LAST", "EVIDENCE", "NEXT"}}
	for i := range all {
		p := &all[i]
		if p.State == suspect.Suspect {
			sure++
		}
		var texts []string
		last := "-"
		for j := range p.Evidence {
			e := &p.Evidence[j]
			text := fmt.Sprintf("%s: %s", e.Gang, e.Reason)
			if e.Of > 1 {
				text += fmt.Sprintf(", one of %d nodes", e.Of)
			}
			texts, last = append(texts, text), cli.Age(e.Time)
		}
		for j := range p.Findings {
			texts = append(texts, p.Findings[j].Sentence())
		}
		rows = append(rows, []string{
			string(p.State), p.Kind, p.Name, fmt.Sprint(len(p.Evidence)), last, strings.Join(texts, "; "), p.Next,
		})
	}
	if len(rows) == 1 {
		return "No node is suspect.\n", 0
	}
	return cli.Table(rows), sure
}
