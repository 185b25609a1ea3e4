package openb

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Seeds are the paper's.
func Seeds(n int) (seeds []int64) {
	for i := range n {
		seeds = append(seeds, int64(42+i))
	}
	return seeds
}

// Published are the results of the paper, mean of ten seeds.
func Published(policy, trace string) (Result, bool) {
	figures := map[string]map[string][2]float64{
		"Random": {"default": {86.30, 87.47}}, "BestFit": {"default": {92.86, 93.08}},
		"FGD": {
			"default": {95.23, 95.39}, "cpu050": {95.00, 95.21}, "cpu100": {95.21, 95.35}, "cpu200": {94.82, 95.05},
			"gpushare40": {93.96, 94.15}, "gpushare60": {91.25, 91.40}, "gpushare80": {89.08, 89.31},
			"gpuspec10": {94.66, 94.95}, "gpuspec20": {94.66, 94.84}, "gpuspec25": {93.91, 94.74},
			"multigpu20": {95.53, 95.65}, "multigpu30": {96.36, 96.46}, "multigpu40": {96.91, 96.99},
		},
	}
	f, ok := figures[policy][trace]
	return Result{At100: f[0], At130: f[1]}, ok
}

// Table has the means over seeds, by trace and policy.
type Table map[string]map[string]Result

// Compare replays traces from a folder with some seeds by the named policies, two replays at once.
func Compare(dir string, traces, policies []string, seeds []int64) (Table, error) {
	nodes, err := ReadNodes(dir)
	if err != nil {
		return nil, err
	}
	gpus := 0
	for i := range nodes {
		gpus += Whole * len(nodes[i].GPUs)
	}
	out := Table{}
	for _, trace := range traces {
		tasks, err := ReadTasks(dir, trace)
		if err != nil {
			return nil, err
		}
		sums := map[string]Result{}
		var mu sync.Mutex
		var all sync.WaitGroup
		slots := make(chan struct{}, 2)
		for _, seed := range seeds {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				for _, p := range Policies(nodes, tasks, seed) {
					if !slices.Contains(policies, p.Name) {
						continue
					}
					r := Replay(nodes, Arrivals(tasks, gpus+gpus*3/10, seed), p)
					n := float64(len(seeds))
					mu.Lock()
					s := sums[p.Name]
					sums[p.Name] = Result{s.At100 + r.At100/n, s.At130 + r.At130/n, s.Decision + r.Decision/time.Duration(len(seeds))}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		out[trace] = sums
	}
	return out, nil
}

// Print writes a line for each trace, with the paper's results in brackets.
func (t Table) Print(w io.Writer, traces, policies []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s", "trace")
	for _, p := range policies {
		fmt.Fprintf(&b, " %26s", p)
	}
	for _, trace := range traces {
		fmt.Fprintf(&b, "\n%-12s", trace)
		for _, p := range policies {
			r := t[trace][p]
			text := fmt.Sprintf("%.2f/%.2f", r.At100, r.At130)
			if paper, ok := Published(p, trace); ok {
				text += fmt.Sprintf(" (%.2f/%.2f)", paper.At100, paper.At130)
			}
			fmt.Fprintf(&b, " %26s", text)
		}
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}
