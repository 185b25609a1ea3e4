//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
)

// shares runs pods with shares of GPUs through the plugin, on a kubelet of
// test/kubelet: it calls, waits and writes as a kubelet does, and runs no
// containers. 5 ms for each pod are 200 pods a second.
func shares(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg = "./deviceplugin/resource"
	var rows []row
	for _, b := range []struct {
		what, name, metric, benchtime string
		limit                         float64
	}{
		{"PreStartContainer of a share beside 127 others, p99", "BenchmarkStartShare", "p99-ms", "2s", 10},
		{"1,000 pods with shares bound and released, for each", "BenchmarkThousandShares", "ms/pod", "3x", 5},
	} {
		out, err := goBench(ctx, log, ".", b.name, b.benchtime, pkg)
		if err != nil {
			return nil, err
		}
		value, err := metric(out, b.metric)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
		rows = append(rows, atMost(b.what, value, b.limit, "ms", "go test -bench "+b.name+" "+pkg))
	}
	return rows, nil
}
