package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/topo"
	phase "github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// story holds the steps of the demo and its output.
type story struct {
	command *cobra.Command
	options *options
	cluster *cluster
	pools   []pool
	number  int // Of the last step.
}

func (s *story) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.fleet, s.topology, s.cable, s.gangs, s.why, s.shares, s.end} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) print(format string, args ...any) error {
	return cli.Write(s.command, fmt.Sprintf(format, args...))
}

// title begins a step, after a pause.
func (s *story) title(ctx context.Context, text string) error {
	if s.number++; s.number > 1 && !s.options.once {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.options.pause):
		}
	}
	return s.print("\n%s\n\n", cli.Bold(s.command, fmt.Sprintf("%d. %s", s.number, text)))
}

// show runs a command of `heddle topo` against the demo's topo-master, as a user would.
func (s *story) show(ctx context.Context, most int, args ...string) error {
	args = append(args, "--server", s.cluster.url)
	c := topo.NewCommand() //nolint:contextcheck // The context is given when it runs.
	return s.execute(ctx, most, c, "heddle topo "+strings.Join(args, " "), args)
}

// execute runs a command, and prints it and at most this many lines of each part of its
// answer.
func (s *story) execute(ctx context.Context, most int, c *cobra.Command, shown string, args []string) error {
	c.SilenceErrors, c.SilenceUsage = true, true
	var out strings.Builder
	c.SetOut(&out)
	c.SetErr(s.command.ErrOrStderr())
	c.SetArgs(args)
	if err := c.ExecuteContext(ctx); err != nil && !errors.Is(err, cli.ErrFindings) {
		return err
	}
	return cli.Show(s.command, "$ "+shown+"\n"+cli.Fit(clip(out.String(), most), cli.Width))
}

// clip leaves out lines of long parts, between which are empty lines.
func clip(text string, most int) string {
	var b strings.Builder
	for i, part := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		lines := strings.Split(part, "\n")
		if rest := len(lines) - most; rest > 1 {
			lines = append(lines[:most:most], fmt.Sprintf("... and %d more", rest))
		}
		b.WriteString(strings.Join(lines, "\n") + "\n")
	}
	return b.String()
}

// fleet makes the machines.
func (s *story) fleet(ctx context.Context) error {
	if err := s.title(ctx, fmt.Sprintf("A simulated fleet of %d machines", s.options.nodes)); err != nil {
		return err
	}
	rows := [][]string{{"POOL", "NODES", "GPUS", "HCAS", "CABLES"}}
	for i := range s.pools {
		p := &s.pools[i]
		for at := range p.nodes {
			s.cluster.add(&p.nodes[at])
		}
		n := len(p.nodes)
		rows = append(rows, []string{
			p.name, fmt.Sprint(n), fmt.Sprint(n * int(p.gpus)), fmt.Sprint(n * int(p.hcas)), p.cabling,
		})
	}
	return cli.Show(s.command, cli.Table(rows))
}

// topology waits for the map, and shows it.
func (s *story) topology(ctx context.Context) error {
	if err := s.title(ctx, "The map that topo-master makes of where their cables end"); err != nil {
		return err
	}
	err := s.cluster.until(ctx, "the map", func(v *snapshot.Snapshot) bool {
		known := 0
		for _, n := range v.Nodes {
			if n.Believed() != nil {
				known++
			}
		}
		return known == s.options.nodes
	})
	if err != nil {
		return err
	}
	const most = 16
	if err := s.show(ctx, most, "tree", "--groups"); err != nil {
		return err
	}
	return s.print("\nLook at %s/ : every box is a group, every cell a node.\n", s.cluster.url)
}

// The cable that is in the wrong switch: a node's of the third unit, in the second's.
const (
	wrongUnit, otherUnit = 2, 1
	wrongSeat, wrongRail = 4, 5
)

// cable puts one into the wrong switch, and back.
func (s *story) cable(ctx context.Context) error {
	p := &s.pools[0]
	right, other := &p.nodes[wrongUnit*p.group+wrongSeat], &p.nodes[otherUnit*p.group]
	title := fmt.Sprintf("Someone puts a cable of %s into the wrong switch", right.name)
	if err := s.title(ctx, title); err != nil {
		return err
	}
	wrong := right.rewired(other, wrongRail, p.group+1)
	s.cluster.report(&wrong)
	found := func(n int) func(*snapshot.Snapshot) bool {
		return func(v *snapshot.Snapshot) bool { return len(v.Tree.Findings()) == n }
	}
	if err := s.cluster.until(ctx, "the finding", found(1)); err != nil {
		return err
	}
	if err := s.show(ctx, 1<<10, "miscabled"); err != nil {
		return err
	}
	err := s.print("\nLook at the page: %s and its group are degraded. Then the cable goes back.\n", right.name)
	if err != nil {
		return err
	}
	if err := s.title(ctx, "The cable is mended"); err != nil {
		return err
	}
	s.cluster.report(right)
	if err := s.cluster.until(ctx, "the mended cable", found(0)); err != nil {
		return err
	}
	return s.show(ctx, 1<<10, "miscabled")
}

// gangs places two, and one that no group holds.
func (s *story) gangs(ctx context.Context) error {
	if err := s.title(ctx, "Three gangs: each starts in one group, or not at all"); err != nil {
		return err
	}
	gpus := map[string]int32{}
	for i := range s.pools {
		for at := range s.pools[i].nodes {
			gpus[s.pools[i].nodes[at].name] = s.pools[i].gpus
		}
	}
	planner, err := newScheduler(ctx, s.cluster, gpus)
	if err != nil {
		return err
	}
	unit, rack := s.pools[0].group, s.pools[1].group
	all := []gang{
		{"llama", unit, 8, "leaf"}, {"moe", rack, 4, "nvlink"}, {"giant", unit + 4, 8, "leaf"},
	}
	rows := [][]string{{"GANG", "PODS", "GPUS OF EACH", "IN ONE", "PLANNED IN", "OUTCOME"}}
	for i := range all {
		g := &all[i]
		took, rejection := planner.schedule(g)
		outcome := "placed"
		if rejection != nil {
			outcome = "rejected"
		}
		rows = append(rows, []string{
			g.name, fmt.Sprint(g.pods), fmt.Sprint(g.gpus), g.requiredLevel,
			fmt.Sprintf("%5.2f ms", took.Seconds()*1000), outcome,
		})
	}
	if err := cli.Show(s.command, cli.Table(rows)+"\n"); err != nil {
		return err
	}
	err = s.cluster.until(ctx, "the gangs", func(v *snapshot.Snapshot) bool {
		states := map[phase.Phase]int{}
		for _, g := range v.GangList() {
			if g.State == phase.Queued && g.Members < g.MinMember {
				return false // Some of its pods have not been seen yet.
			}
			states[g.State]++
		}
		return states[phase.Running] == 2 && states[phase.Queued] == 1
	})
	if err != nil {
		return err
	}
	if err := s.show(ctx, 1<<10, "gangs"); err != nil {
		return err
	}
	return s.print("\nLook at the page: choose a gang, and see its nodes. giant waits, and WHY has the reason.\n")
}

// why asks about the gang that waits. The kubeconfig is of the API server in memory.
func (s *story) why(ctx context.Context) (err error) {
	if err := s.title(ctx, "Why giant waits, and what there is room for"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "heddle-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the kubeconfig: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := clientcmdapi.NewConfig()
	config.Clusters["demo"] = &clientcmdapi.Cluster{Server: s.cluster.apiURL}
	config.Contexts["demo"] = &clientcmdapi.Context{Cluster: "demo"}
	config.CurrentContext = "demo"
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	const most = 8
	c := topo.NewWhyCommand() //nolint:contextcheck // The context is given when it runs.
	return s.execute(ctx, most, c, "heddle why -n demo giant",
		[]string{"-n", namespace, "giant", "--server", s.cluster.url, "--kubeconfig", file})
}

// shares lets pods share GPUs.
func (s *story) shares(ctx context.Context) error {
	if err := s.title(ctx, "Notebooks share two GPUs of a node"); err != nil {
		return err
	}
	table, err := shares([]share{
		{"notebook-a", 30, 24}, {"notebook-b", 20, 8}, {"inference", 60, 40}, {"notebook-c", 10, 4}, {"training", 50, 60},
	})
	if err != nil {
		return err
	}
	return cli.Show(s.command, table+
		"\nA GPU that is in use is filled before an idle one is begun: the idle one stays whole.\n")
}

// end shows what can be done next.
func (s *story) end(ctx context.Context) error {
	if err := s.title(ctx, "What next"); err != nil {
		return err
	}
	page := "heddle demo      # on a terminal: the page stays until Ctrl-C\n"
	if !s.options.once {
		page = fmt.Sprintf("The page stays at %s/ until Ctrl-C. Until then, in another terminal:\n\n"+
			"heddle topo tree --server %s   # every node of the map\n", s.cluster.url, s.cluster.url)
	}
	return s.print(`%sheddle doctor    # what is wrong on this machine; heddle inspect: what it has
make demo        # a real one-node Kubernetes with such machines, from a clone
`, page)
}
