package topo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func treeCommand(at *Master) *cobra.Command {
	c := &cobra.Command{
		Use: "tree", Short: "Show groups and nodes: status, free GPUs, gangs, reasons", Args: cobra.NoArgs,
	}
	groups := c.Flags().Bool("groups", false, "leave the nodes out")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		t, err := read[snapshot.Topology](c, at, "/v1/topology")
		if err != nil {
			return err
		}
		gangs, err := read[snapshot.Gangs](c, at, "/v1/gangs")
		if err != nil {
			return err
		}
		v := treeView{groupsOnly: *groups, wide: output.Wide(), gangs: byNode(gangs.Gangs)}
		return output.Print(c, t, v.table(t.Tree)+"\n"+crossing(t)+summary(t)+stale(t.StaleSince))
	}
	output.AddWatch(c)
	return c
}

// treeView configures the display of the tree.
type treeView struct {
	groupsOnly, wide bool
	// gangs has the gangs on each node.
	gangs map[string][]*snapshot.Gang
}

// gangsColumn is the column that is left out where no gang is known.
const gangsColumn = 5

func (v *treeView) table(tree []snapshot.Element) string {
	rows := [][]string{{"NAME", "KIND", "STATUS", "NODES", "FREE GPUS", "GANGS", "WHY"}}
	for i := range tree {
		rows = v.rows(rows, &tree[i], 0)
	}
	if len(v.gangs) == 0 {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], gangsColumn, gangsColumn+1)
		}
	}
	return cli.Table(rows)
}

func (v *treeView) rows(rows [][]string, e *snapshot.Element, depth int) [][]string {
	isNode := e.Nodes == nil
	if isNode && v.groupsOnly {
		return rows
	}
	count, free := "", ""
	if !isNode {
		count = fmt.Sprint(e.Nodes.Ready + e.Nodes.Degraded + e.Nodes.NotReady)
	}
	if e.GPUs.Total > 0 {
		free = gpus(e.GPUs)
	}
	rows = append(rows, []string{
		strings.Repeat("  ", depth) + e.Name, e.Kind, e.Status, count, free, v.gangsIn(e), reasons(e),
	})
	for i := range e.Child {
		rows = v.rows(rows, &e.Child[i], depth+1)
	}
	return rows
}

// gangsIn names the gangs on a node or, for a group of nodes, those in it, with
// how many of their nodes are if that is not all.
func (v *treeView) gangsIn(e *snapshot.Element) string {
	count := map[*snapshot.Gang]int{}
	if e.Nodes == nil {
		for _, g := range v.gangs[e.Name] {
			count[g] = len(g.Nodes)
		}
	}
	for i := range e.Child {
		if e.Child[i].Nodes == nil {
			for _, g := range v.gangs[e.Child[i].Name] {
				count[g]++
			}
		}
	}
	var names []string
	for g, n := range count {
		name := g.Namespace + "/" + g.Name
		if n < len(g.Nodes) {
			name += fmt.Sprintf(" (%d of %d nodes)", n, len(g.Nodes))
		}
		names = append(names, name)
	}
	slices.Sort(names)
	const most = 3
	if rest := len(names) - most; rest > 0 && !v.wide {
		names = append(names[:most], fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(names, ", ")
}

// byNode returns which gangs are on which node.
func byNode(all []snapshot.Gang) map[string][]*snapshot.Gang {
	on := map[string][]*snapshot.Gang{}
	for i := range all {
		for _, node := range all[i].Nodes {
			on[node] = append(on[node], &all[i])
		}
	}
	return on
}

// crossing shows the NVLink domains that the tree does not have, since they are across
// its groups.
func crossing(t *snapshot.Topology) string {
	if len(t.Crossing) == 0 {
		return ""
	}
	in := map[string]string{}
	var walk func(string, []snapshot.Element)
	walk = func(group string, list []snapshot.Element) {
		for i := range list {
			in[list[i].Name] = group
			walk(list[i].Name, list[i].Child)
		}
	}
	walk("no group", t.Tree)
	rows := [][]string{{"ACROSS GROUPS", "KIND", "STATUS", "NODES", "IN"}}
	for _, d := range t.Crossing {
		count := map[string]int{}
		for _, n := range d.Nodes {
			count[in[n]]++
		}
		var groups []string
		for _, name := range slices.Sorted(maps.Keys(count)) {
			groups = append(groups, fmt.Sprintf("%s (%d)", name, count[name]))
		}
		rows = append(rows, []string{d.Name, d.Kind, d.Status, fmt.Sprint(len(d.Nodes)), strings.Join(groups, ", ")})
	}
	return cli.Table(rows) + "\n"
}

func summary(t *snapshot.Topology) string {
	nodes := t.Nodes.Ready + t.Nodes.Degraded + t.Nodes.NotReady
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %d ready, %d degraded, %d not ready", cli.Count(nodes, "node"),
		t.Nodes.Ready, t.Nodes.Degraded, t.Nodes.NotReady)
	if t.GPUs.Total > 0 {
		text.WriteString("; GPUs: " + gpus(t.GPUs))
	}
	if missing := t.GPUs.Total - t.GPUs.Offered; missing > 0 {
		fmt.Fprintf(&text, ", %d not offered", missing)
	}
	if len(t.Findings) > 0 {
		text.WriteString("; " + cli.Count(len(t.Findings), "finding") + ", see heddle topo miscabled")
	}
	for _, s := range t.StaleSources {
		fmt.Fprintf(&text, "; %s silent on %s for %s", s.Source, cli.Count(s.Nodes, "node"), cli.Age(s.Since))
	}
	if len(t.Ignored) > 0 {
		text.WriteString("; " + cli.Count(len(t.Ignored), "report") + " not believed")
	}
	return text.String() + "\n"
}

// gpus returns "3 of 8", or "8" where topo-master counts no pods.
func gpus(g snapshot.GPUs) string {
	if g.Free == nil {
		return fmt.Sprint(g.Total)
	}
	return fmt.Sprintf("%d of %d", *g.Free, g.Total)
}

func reasons(e *snapshot.Element) string {
	var out []string
	for _, r := range e.Reasons {
		text := r.Kind
		if r.Count > 1 {
			text = fmt.Sprintf("%d %s", r.Count, r.Kind)
		}
		if !r.Since.IsZero() {
			text += " for " + cli.Age(r.Since)
		}
		out = append(out, text)
	}
	if e.Spare {
		out = append(out, "kept for repair")
	}
	if e.Cordoned {
		out = append(out, "cordoned")
	}
	return strings.Join(out, ", ")
}

// stale warns of an answer that is older than the cluster; "" for none.
func stale(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return "STALE: topo-master has received nothing from the API server for " + cli.Age(since) + "\n"
}
