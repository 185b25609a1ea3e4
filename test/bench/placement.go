//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/heddle-dev/heddle/test/bench/week"
)

// places runs the benchmarks of topo/placement: one plan, on maps of 16 nodes
// to a leaf and 16 leaves to a spine, half of them busy.
func places(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg, ms = "./topo/placement", "ms"
	one := func(what, name string, limit float64) benchmark {
		return benchmark{pkg, name, "2s", []figure{{what, "ns/op", 1e-6, limit, ms}}}
	}
	return runAll(ctx, log, []benchmark{
		{pkg, "BenchmarkPlace/whole/64/16384", "2s", []figure{
			{"a place for 64 pods among 16,384 nodes", "ns/op", 1e-6, 1, ms},
			{"the same, allocations", "allocs/op", 1, 1, ""},
		}},
		one("the same, 8 pods to a node", "BenchmarkPlace/shared/64/16384", 1),
		one("the same, in slices of 8 pods", "BenchmarkPlace/slices/64/16384", 1),
		one("the same, and a master beside them", "BenchmarkPlace/master/64/16384", 1),
		one("the same, rejected", "BenchmarkPlace/rejected/64/16384", 5),
		one("a place for 4,096 pods among 100,000 nodes", "BenchmarkPlace/whole/4096/100000", 10),
		one("the same, in slices of 8 pods", "BenchmarkPlace/slices/4096/100000", 10),
		one("the same, groups of two nodes", "BenchmarkShapes/pairs", 10),
	})
}

// weeks simulates weeks of gangs, prints the tables, and checks what they are
// for: with a map gangs are in fewer groups than without, and in no more than
// with the native rule, under the same requirement.
func weeks(w io.Writer) ([]row, error) {
	var rows []row
	for _, plan := range []week.Plan{week.Irregular(), week.Racks()} {
		r := week.Compare(plan, week.Policies(), 1, 2, 3)
		if err := week.Print(w, plan, r); err != nil {
			return nil, err
		}
		fmt.Fprintln(w)
		none, native, required, ours := &r[0], &r[1], &r[2], &r[3]
		how := "simulated, " + plan.Name
		rows = append(rows,
			atMost("groups per gang, a map to none", ours.Groups/none.Groups, 0.5, "x", how),
			atMost("excess tier, a map to none", ours.Tier/none.Tier, 0.5, "x", how),
			atMost("largest gang that a leaf takes, none to a map", none.Leaf/ours.Leaf, 1, "x", how),
			atMost("groups per gang, to the fewest that had room", ours.Possible, 1.1, "x", how),
			atMost("groups per gang, to the native rule", required.Groups/native.Groups, 1, "x", how),
			atMost("wait of gangs of several pods, to the native rule", ratio(required, native, 1, 2, 3), 1, "x", how),
		)
	}
	return rows, nil
}

// queue compares the order in which gangs start with Slurm's, on the same weeks at a load at which gangs wait.
func queue(w io.Writer) ([]row, error) {
	plan := week.Irregular()
	plan.Load = 0.85
	r := week.Queue(plan, week.Disciplines(), 1, 2, 3, 4, 5)
	if err := week.PrintQueue(w, plan, r); err != nil {
		return nil, err
	}
	fmt.Fprintln(w)
	ours, _ := r[0].Wait(0, 1, 2, 3)
	least := math.Inf(1)
	for _, of := range r[1 : len(r)-1] {
		other, _ := of.Wait(0, 1, 2, 3)
		least = min(least, other.Hours())
	}
	how := "simulated, " + plan.Name
	return []row{atMost("mean wait of all gangs, to the best of Slurm's", ours.Hours()/least, 1, "x", how)}, nil
}

// forecasts asks heddle plan about every tenth gang of a week at its arrival.
func forecasts(ctx context.Context, w io.Writer) ([]row, error) {
	plan, wrong := week.Irregular(), 0
	plan.Load = 0.85
	var all []week.Forecast
	for _, estimate := range []float64{1, 3, 0} {
		f := week.ForecastOf(ctx, plan, 1, 10, estimate)
		all, wrong = append(all, f), wrong+f.Wrong
	}
	if err := week.PrintForecasts(w, plan, all); err != nil {
		return nil, err
	}
	fmt.Fprintln(w)
	return []row{atMost("wrong answers of heddle plan about now", float64(wrong), 0, "", "simulated, "+plan.Name)}, nil
}

// suspects simulates weeks of failures, with and without the memory of them. Nothing was tuned on the
// seeds from 1000 on.
func suspects(w io.Writer, number int) ([]row, error) {
	var seeds []uint64
	for i := range number {
		seeds = append(seeds, uint64(1000+i))
	}
	plan, all := week.Small(), week.Troubles()
	results := make([][]week.Repair, len(all))
	for i := range all {
		of := seeds
		if i > 0 {
			of = seeds[:(len(seeds)+9)/10]
		}
		for _, care := range []week.Care{week.Careless, week.Avoiding} {
			results[i] = append(results[i], week.RepairOf(plan, &all[i], care, of...))
		}
	}
	if err := week.PrintRepairs(w, plan, all, results); err != nil {
		return nil, err
	}
	fmt.Fprintln(w)
	const how = "simulated weeks of failures"
	found, _ := results[1][1].Within()
	worst, _ := results[3][1].Within()
	return []row{
		atMost(fmt.Sprintf("suspects in %d weeks without faults of hardware", number),
			float64(results[0][1].Suspects), 0, "", how),
		atLeast("weeks with a bad node that get at most two gangs", 100*found, 99, "%", how),
		atLeast("the same at Llama 3's rates", 100*worst, 99, "%", how),
		atMost("node-hours lost at these rates, with to without", results[3][1].Lost/results[3][0].Lost, 0.5, "x", how),
	}, nil
}

// ratio divides the mean waits of gangs of some sizes.
func ratio(a, b *week.Result, sizes ...int) float64 {
	first, _ := a.Wait(sizes...)
	second, _ := b.Wait(sizes...)
	return first.Hours() / second.Hours()
}
