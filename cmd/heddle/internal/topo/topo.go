// Package topo is `heddle topo`: it shows what topo-master knows of the fabric.
// It asks one and decides nothing.
package topo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const usage = `heddle topo: where every cable of the cluster goes, and which gangs run where.

  heddle topo [tree]       the groups and their nodes: status, free GPUs, reasons, gangs
  heddle topo gangs        pods that run together or not at all: where they run, or why not
  heddle topo miscabled    every port that is not as it should be; exit code 1 if there is any
  heddle topo export       the same tree for other projects, see --format

The answer comes from heddle-topo-master, through the API server's service
proxy or from --server; one that asks for a token is only reached by --server
and --token-file.`

// command is one run.
type command struct {
	stdout io.Writer
	from   asker
	groups bool
	format string
	kind   string
}

// asker asks topo-master by GET.
type asker interface {
	get(ctx context.Context, path, kind string) ([]byte, error)
}

// Run runs the command.
func Run(ctx context.Context, args []string, stdout io.Writer) error {
	set := cli.Flags("topo", usage, stdout)
	c := &command{stdout: stdout}
	var where place
	where.register(set)
	set.BoolVar(&c.groups, "groups", false, "tree without its nodes")
	set.StringVar(&c.format, "format", "",
		"`FORMAT` of export: slurm (topology/tree), slurm-block (topology/block), kueue, hypernode or nodes (their labels)")
	set.StringVar(&c.kind, "kind", "", "`KIND` of groups that are the blocks of slurm-block; default the lowest")
	if err := set.Read(args, 1); err != nil {
		return err
	}
	verb := "tree"
	if words := set.Arguments(); len(words) > 0 {
		verb = words[0]
	}
	if set.Given("format") && verb != "export" {
		return cli.Usagef("topo", "topo: --format is for export")
	}
	run, ok := map[string]func(context.Context) error{
		"tree": c.tree, "gangs": c.gangs, "miscabled": c.miscabled, "export": c.export,
	}[verb]
	if !ok {
		return cli.Usagef("topo", "topo: %q is none of tree, gangs, miscabled, export", verb)
	}
	if verb == "export" && c.path() == "" {
		return cli.Usagef("topo", "topo: --format %q is none of slurm, slurm-block, kueue, hypernode, nodes", c.format)
	}
	var err error
	if c.from, err = where.asker(ctx); err != nil {
		return err
	}
	return run(ctx)
}

// path is the export's.
func (c *command) path() string {
	format := map[string]string{
		"slurm": export.FormatSlurmTree, "slurm-block": export.FormatSlurmBlock, "kueue": export.FormatKueue,
		"hypernode": export.FormatHyperNodes, "nodes": export.FormatNodes,
	}[c.format]
	if format == "" {
		return ""
	}
	return "/v1/export/" + format
}

func (c *command) export(ctx context.Context) error {
	body, err := c.from.get(ctx, c.path(), c.kind)
	if err != nil {
		return err
	}
	return c.write(string(body))
}

func (c *command) topology(ctx context.Context) (*snapshot.Topology, error) {
	body, err := c.from.get(ctx, "/v1/topology", "")
	if err != nil {
		return nil, err
	}
	var t snapshot.Topology
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, fmt.Errorf("read topo-master's answer: %w", err)
	}
	return &t, nil
}

func (c *command) tree(ctx context.Context) error {
	t, err := c.topology(ctx)
	if err != nil {
		return err
	}
	// The tree is worth showing without them, as by an older topo-master.
	gangs, blind := c.askGangs(ctx)
	if blind != nil {
		gangs = &snapshot.Gangs{}
	}
	rows := [][]string{{"NAME", "KIND", "STATUS", "NODES", "FREE GPUS", "GANGS", "WHY"}}
	on := guestsOf(gangs.Gangs)
	for i := range t.Tree {
		rows = c.rows(rows, &t.Tree[i], on, 0)
	}
	if len(on) == 0 {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], gangsColumn, gangsColumn+1)
		}
	}
	nodes := t.Nodes.Ready + t.Nodes.Degraded + t.Nodes.NotReady
	sum := fmt.Sprintf("%s: %d ready, %d degraded, %d not ready", cli.Count(nodes, "node"),
		t.Nodes.Ready, t.Nodes.Degraded, t.Nodes.NotReady)
	if t.GPUs.Total > 0 {
		sum += "; GPUs: " + gpus(t.GPUs)
	}
	if missing := t.GPUs.Total - t.GPUs.Offered; missing > 0 {
		sum += fmt.Sprintf(", %d not offered", missing)
	}
	if len(t.Findings) > 0 {
		sum += "; " + cli.Count(len(t.Findings), "finding") + ", see heddle topo miscabled"
	}
	if len(t.Ignored) > 0 {
		sum += "; " + cli.Count(len(t.Ignored), "report") + " not believed"
	}
	sum += "\n"
	if blind != nil {
		sum += "Gangs are not known: " + blind.Error() + "\n"
	}
	return c.write(cli.Table(rows, 2) + "\n" + sum + old(t))
}

// gangsColumn is the one that is there if there are any.
const gangsColumn = 5

// old warns of a map that is not of now.
func old(t *snapshot.Topology) string {
	if t.StaleSince == nil {
		return ""
	}
	return stale(*t.StaleSince)
}

func at(when time.Time) string { return when.Format("2006-01-02 15:04:05 MST") }

func (c *command) rows(rows [][]string, e *snapshot.Element, on guests, depth int) [][]string {
	isNode := e.Nodes == nil
	if isNode && c.groups {
		return rows
	}
	count, free := "", ""
	if !isNode {
		count = fmt.Sprint(e.Nodes.Ready + e.Nodes.Degraded + e.Nodes.NotReady)
	}
	if e.GPUs.Total > 0 {
		free = gpus(e.GPUs)
	}
	rows = append(rows, []string{strings.Repeat("  ", depth) + e.Name, e.Kind, e.Status, count, free, on.in(e), why(e)})
	for i := range e.Child {
		rows = c.rows(rows, &e.Child[i], on, depth+1)
	}
	return rows
}

// gpus is "3 of 8", or "8" where nobody counts pods.
func gpus(g snapshot.GPUs) string {
	if g.Free == nil {
		return fmt.Sprint(g.Total)
	}
	return fmt.Sprintf("%d of %d", *g.Free, g.Total)
}

func why(e *snapshot.Element) string {
	var out []string
	for _, r := range e.Reasons {
		text := r.Kind
		if r.Count > 1 {
			text = fmt.Sprintf("%d %s", r.Count, r.Kind)
		}
		if r.Since != nil {
			text += " since " + at(*r.Since)
		}
		out = append(out, text)
	}
	if e.Cordoned {
		out = append(out, "cordoned")
	}
	return strings.Join(out, ", ")
}

func (c *command) write(text string) error {
	if _, err := io.WriteString(c.stdout, text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
