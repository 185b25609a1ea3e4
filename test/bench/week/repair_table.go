package week

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Troubles returns the rows of the table of suspects: what users break, one bad node beside it, and all of the rates of
// the training of Llama 3, without and with a bad node.
func Troubles() []Trouble {
	all := Llama3()
	users := Trouble{Name: "users' bugs and crashes", Crashes: all.Crashes, Bugs: all.Bugs}
	bad, worst := users, all
	bad.Name, bad.Bad = "one bad node that looks Ready", true
	worst.Name, worst.Bad = "Llama 3's rates and a bad node", true
	return []Trouble{users, bad, all, worst}
}

// mean returns the mean time to be whole, and the time that a share of the failures is under.
func (r *Repair) mean(share float64) (mean, under time.Duration) {
	n := len(r.Whole)
	if n == 0 {
		return 0, 0
	}
	for _, d := range r.Whole {
		mean += d / time.Duration(n)
	}
	return mean, r.Whole[int(share*float64(n-1))]
}

// Within is the share of the weeks in which no more than two gangs failed on the bad node before it was avoided; most
// is the largest number.
func (r *Repair) Within() (share float64, most int) {
	few := 0
	for _, n := range r.Before {
		most = max(most, n)
		if n <= 2 {
			few++
		}
	}
	return float64(few) / float64(len(r.Before)), most
}

// PrintRepairs writes the results of each care for each trouble as a table.
func PrintRepairs(w io.Writer, plan Plan, troubles []Trouble, results [][]Repair) error {
	const head = "%-40s %8s %22s %11s %22s %8s %8s\n"
	var b strings.Builder
	fmt.Fprintf(&b, "weeks of failures on %s, %.0f %% of the GPUs asked for; failures, node-hours and runs per week\n",
		plan.Name, 100*plan.Load)
	fmt.Fprintf(&b, head, "", "", "hours until whole", "node-hours", "gangs on the bad node", "no other", "healthy")
	fmt.Fprintf(&b, head, "", "failures", "mean / p90 / p99", "lost", "mean / most / <= 2", "room", "suspects")
	for i := range troubles {
		names := []string{troubles[i].Name, "the same, suspects avoided"}
		for care := range results[i] {
			r, name := &results[i][care], names[care]
			weeks := float64(len(r.Before))
			mean, p90 := r.mean(0.9)
			_, p99 := r.mean(0.99)
			onBad := "-"
			if troubles[i].Bad {
				share, most := r.Within()
				sum := 0
				for _, n := range r.Before {
					sum += n
				}
				onBad = fmt.Sprintf("%.1f / %d / %.1f %%", float64(sum)/weeks, most, 100*share)
			}
			fmt.Fprintf(&b, "%-40s %8.1f %22s %11.0f %22s %8.1f %8d\n", name, float64(r.Failures)/weeks,
				hours(mean)+" / "+hours(p90)+" / "+hours(p99), r.Lost/weeks, onBad, float64(r.Forced)/weeks, r.Suspects)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
