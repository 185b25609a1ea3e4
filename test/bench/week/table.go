package week

import (
	"fmt"
	"io"
	"time"
)

// Policies are the ways that the table compares: without a map, the native
// rule, and ours with and without a required level.
func Policies() []Policy {
	return []Policy{&BestFit{}, &Native{}, &Map{Required: true}, &Map{}}
}

// Compare simulates the same weeks under every policy, and returns the means.
// Weeks differ much: one large gang that waits holds up all others.
func Compare(plan Plan, seeds ...uint64) []Result {
	var out []Result
	for _, policy := range Policies() {
		var all []Result
		for _, seed := range seeds {
			all = append(all, Run(plan, policy, seed))
		}
		out = append(out, mean(all))
	}
	return out
}

// Print writes the results of a cluster as a table.
func Print(w io.Writer, plan Plan, results []Result) error {
	_, err := fmt.Fprintf(w, "weeks of gangs on %s, %.0f %% of the GPUs asked for\n%-26s %7s %8s %9s %8s %8s %8s %8s %8s %8s\n",
		plan.Name, 100*plan.Load, "", "placed", "groups", "fewest", "excess", "largest", "largest", "GPUs", "wait", "restarts")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%-26s %7s %8s %9s %8s %8s %8s %8s\n",
		"", "gangs", "/fewest", "groups", "tier", "in leaf", "in spine", "in use"); err != nil {
		return err
	}
	for _, r := range results {
		_, err := fmt.Fprintf(w, "%-26s %7d %8.3f %8.1f%% %8.3f %8.2f %8.1f %7.1f%% %8s %8d\n",
			r.Policy, r.Gangs, r.Groups, 100*r.Optimal, r.Tier, r.Leaf, r.Spine, 100*r.Used, r.Wait.Round(time.Second), r.Restarts)
		if err != nil {
			return err
		}
	}
	return nil
}
