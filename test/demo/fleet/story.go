package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// story holds the steps and their output.
type story struct {
	out     io.Writer
	command string // The path of the command heddle.
	cluster *cluster
	pools   []pool
	nodes   int
	pause   time.Duration // Between two steps, to look at the page.
	number  int           // Of the last step.
}

func (s *story) run(ctx context.Context) error {
	p := &s.pools[0]
	right, other := &p.nodes[wrongUnit*p.group+wrongSeat], &p.nodes[otherUnit*p.group]
	wrong := right.rewired(other, wrongRail, p.group+1)
	found := func(n int) func(*snapshot.Snapshot) bool {
		return func(v *snapshot.Snapshot) bool { return len(v.Tree.Findings()) == n }
	}
	for _, step := range []struct {
		title string
		do    func(context.Context) error
		// show is the command that follows, and most how many lines of each part of its answer are printed.
		show string
		most int
		end  string
	}{
		{title: fmt.Sprintf("A simulated fleet of %d machines", s.nodes), do: s.fleet},
		{
			title: "The map that topo-master makes of where their cables end", do: s.mapped,
			show: "topo tree --groups", most: 16,
			end: fmt.Sprintf("Look at %s/ : every box is a group, every cell a node.", s.cluster.url),
		},
		{
			title: fmt.Sprintf("Someone puts a cable of %s into the wrong switch", right.name),
			do: func(ctx context.Context) error {
				s.cluster.report(&wrong)
				return s.cluster.until(ctx, "the finding", found(1))
			},
			show: "topo miscabled", most: all,
			end: fmt.Sprintf("Look at the page: %s and its group are degraded. Then the cable goes back.", right.name),
		},
		{
			title: "The cable is mended",
			do: func(ctx context.Context) error {
				s.cluster.report(right)
				return s.cluster.until(ctx, "the mended cable", found(0))
			},
			show: "topo miscabled", most: all,
		},
		{
			title: "Three gangs: each starts in one group, or not at all", do: s.gangs,
			show: "topo gangs", most: all,
			end: "Look at the page: choose a gang, and see its nodes. giant waits, and WHY has the reason.",
		},
		{title: "Why giant waits, and what there is room for", show: "why giant", most: 8},
		{
			title: "Notebooks share two GPUs of a node", do: s.shares,
			end: fmt.Sprintf("Look at the page: %s has their pods and shares.", s.sharing()),
		},
		{
			title: "What next",
			do: func(ctx context.Context) error {
				s.cluster.report(&wrong) // For those who look at the page now.
				s.next()
				return s.cluster.until(ctx, "the finding", found(1))
			},
		},
	} {
		if err := s.title(ctx, step.title); err != nil {
			return err
		}
		if step.do != nil {
			if err := step.do(ctx); err != nil {
				return err
			}
		}
		if err := s.show(ctx, step.show, step.most); err != nil {
			return err
		}
		if step.end != "" {
			s.print("\n%s\n", step.end)
		}
	}
	return nil
}

// all is more lines than any answer has.
const all = 1 << 20

// The cable that is in the wrong switch: a node's of the third unit, in the second's.
const (
	wrongUnit, otherUnit = 2, 1
	wrongSeat, wrongRail = 4, 5
)

func (s *story) print(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

func (s *story) table(rows [][]string) {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// title begins a step, after a pause.
func (s *story) title(ctx context.Context, text string) error {
	if s.number++; s.number > 1 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.pause):
		}
	}
	s.print("\n%d. %s\n\n", s.number, text)
	return nil
}

// show runs a command of heddle as a user would, and prints it and at most this many lines of each part of its answer.
func (s *story) show(ctx context.Context, args string, most int) error {
	if args == "" {
		return nil
	}
	s.print("$ %s %s\n", heddle, args)
	cmd := exec.CommandContext(ctx, s.command, strings.Fields(args)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.kubeconfig)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
		return fmt.Errorf("%s %s: %w", heddle, args, err)
	}
	for i, part := range strings.Split(strings.TrimRight(string(text), "\n"), "\n\n") {
		if i > 0 {
			s.print("\n")
		}
		lines := strings.Split(part, "\n")
		if rest := len(lines) - most; rest > 1 {
			lines = append(lines[:most:most], fmt.Sprintf("... and %d more", rest))
		}
		s.print("%s\n", strings.Join(lines, "\n"))
	}
	return nil
}

// fleet makes the machines.
func (s *story) fleet(context.Context) error {
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
	s.table(rows)
	return nil
}

// mapped waits for the map.
func (s *story) mapped(ctx context.Context) error {
	return s.cluster.until(ctx, "the map", func(v *snapshot.Snapshot) bool {
		known := 0
		for _, n := range v.Nodes {
			if n.Believed() != nil {
				known++
			}
		}
		return known == s.nodes
	})
}

// next shows what can be done next.
func (s *story) next() {
	if s.pause > 0 {
		s.print("The page stays at %s/ until Ctrl-C, with the cable in the wrong switch again, and with giant, which\n"+
			"shows its reason when you choose it. In another terminal:\n\n"+
			"export KUBECONFIG=%s\n%s topo tree     # every node of the map\n", s.cluster.url, s.cluster.kubeconfig, heddle)
	} else {
		s.print("make fleet           # on a terminal: the page stays until Ctrl-C\n")
	}
	s.print("%[1]s doctor    # what is wrong on this machine; %[1]s inspect: what it has\n"+
		"make demo            # a real one-node Kubernetes with such machines\n", heddle)
}
