//go:build linux

package main

import (
	"context"
	"io"
)

// fabric is the package that makes the tree of groups.
const fabric = "./topo/fabric"

// topology runs the benchmarks of the tree: a fat tree of 8 rails, 5 % of
// whose ports are mis-cabled, dead or swapped.
func topology(ctx context.Context, log io.Writer) ([]row, error) {
	first, err := runAll(ctx, log, []benchmark{
		{fabric, "BenchmarkFirstTree/4608", "2s", []figure{
			{"first tree of 4,608 nodes, from reports to bytes", "ns/op", 1e-6, 50, "ms"},
		}},
		{fabric, "BenchmarkFirstTree/16384", "2s", []figure{{"the same, 16,384 nodes", "ns/op", 1e-6, 150, "ms"}}},
		// One tree takes a second: the time that others get would make it one of one.
		{fabric, "BenchmarkFirstTree/100000", "5x", []figure{{"the same, 100,000 nodes", "ns/op", 1e-9, 1.5, "s"}}},
	})
	if err != nil {
		return nil, err
	}
	rest, err := measure(ctx, log, []single{
		{"one of 16,384 nodes' status to the new answer", fabric, "BenchmarkChange/status/16384", "ns/op", 1e-6, 10, "ms"},
		{"the same, one cable", fabric, "BenchmarkChange/cable/16384", "ns/op", 1e-6, 10, "ms"},
		{"the same, a node that moves to another group", fabric, "BenchmarkChange/moves/16384", "ns/op", 1e-6, 10, "ms"},
		{"the same, a node that comes or goes", fabric, "BenchmarkChange/comes-goes/16384", "ns/op", 1e-6, 10, "ms"},
		{"the same, of 100,000 nodes", fabric, "BenchmarkChange/comes-goes/100000", "ns/op", 1e-6, 100, "ms"},
		{"the map of 16,384 nodes, beside its reports", fabric, "BenchmarkMemory", "MiB", 1, 64, "MB"},
	})
	return append(first, rest...), err
}
