package week

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Policies are the ways that the table compares: without a map, the native rule, and ours with
// and without a required level.
func Policies() []Policy { return []Policy{&BestFit{}, &Native{}, &Map{Required: true}, &Map{}} }

// Compare simulates the same weeks under some policies, and returns the means.
func Compare(plan Plan, policies []Policy, seeds ...uint64) []Result {
	var out []Result
	for _, policy := range policies {
		var all []Result
		for _, seed := range seeds {
			all = append(all, Run(plan, policy, seed))
		}
		out = append(out, mean(all))
	}
	return out
}

// Print writes the results of a cluster as two tables.
func Print(w io.Writer, plan Plan, results []Result) error {
	const (
		head = "%-34s %7s %8s %9s %8s %8s %9s %8s %9s\n"
		line = "%-34s %7d %8.3f %9.3f %8.3f %8.2f %9.1f %7.1f%% %9s\n"
	)
	var b strings.Builder
	fmt.Fprintf(&b, "weeks of gangs on %s, %.0f %% of the GPUs asked for\n", plan.Name, 100*plan.Load)
	fmt.Fprintf(&b, head, "", "placed", "groups", "groups", "excess", "largest", "largest", "GPUs", "wait")
	fmt.Fprintf(&b, head, "", "gangs", "/fewest", "/possible", "tier", "in leaf", "in spine", "in use", "")
	for i := range results {
		r := &results[i]
		wait, _ := r.Wait(1, 2, 3)
		fmt.Fprintf(&b, line, r.Policy, r.Gangs, r.Groups, r.Possible, r.Tier, r.Leaf, r.Spine,
			100*r.Used, wait.Round(time.Second))
	}
	b.WriteString("waits by size, mean / 99th percentile: 1 pod, 2-31, 32-99, 100 and more\n")
	for i := range results {
		fmt.Fprintf(&b, "%-34s", results[i].Policy)
		for size, waits := range results[i].Waits {
			mean, p99 := results[i].Wait(size)
			fmt.Fprintf(&b, " %9s / %-10s (%d)", mean.Round(time.Second), p99.Round(time.Second), len(waits))
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
