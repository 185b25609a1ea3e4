//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// footprint weighs the daemons of a node as installed, three processes of heddle-node, beside the set that they
// replace.
func footprint(ctx context.Context, stdout, log io.Writer, idle time.Duration) (rows []row, err error) {
	const pkg, name = "./test/bench", "BenchmarkFootprint"
	limit := 2*idle + 15*time.Minute
	out, err := goBench(ctx, log, ".", name, "1x", "-timeout", limit.String(), pkg, "-args", "-idle", idle.String())
	if err != nil {
		return nil, err
	}
	fmt.Fprint(stdout, out)
	how := fmt.Sprint(idle, " idle, 8 GPUs and 9 HCAs, the charts' values")
	for _, f := range []figure{
		{"the daemons of a node: memory of three processes, PSS", "pss-MB", 1, 75, "MB"},
		{"the same, to the daemons that they replace", "pss-MB-ratio", 1, 0.8, "x"},
		{"anonymous memory, to theirs", "anon-MB-ratio", 1, 0.8, "x"},
		{"processor time of three processes", "cpu-s", 100 / idle.Seconds(), 0.4, "% core"},
		{"the same, to theirs", "cpu-s-ratio", 1, 0.8, "x"},
		{"writes to the API server until idle, to theirs", "start-writes-ratio", 1, 0.8, "x"},
		{"writes to the API server while idle", "writes", 1, 0, ""},
	} {
		value, err := metric(out, f.metric)
		if err != nil {
			return nil, err
		}
		rows = append(rows, atMost(f.what, value*f.scale, f.limit, f.unit, how))
	}
	return rows, nil
}
