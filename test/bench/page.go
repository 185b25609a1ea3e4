//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// page measures topo-master's page at 5,000 nodes in a headless Chromium, where
// there is one.
func page(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg, name = "./test/e2e/page", "BenchmarkPage"
	out, err := goBench(ctx, log, ".", name, "1x", "-tags", "e2e", pkg)
	if err != nil {
		return nil, err
	}
	if strings.Contains(out, "no chromium") {
		fmt.Fprintln(log, "no chromium: the page is not measured")
		return nil, nil
	}
	var rows []row
	for _, f := range []figure{
		{"page, 5,000 nodes: painted after", "painted-ms", 1, 3000, "ms"},
		{"the same, a frame while it scrolls, median at the slowest size", "frame-ms", 1, 34, "ms"},
		{"the same, a search", "search-ms", 1, 500, "ms"},
		{"the same, JavaScript to show a change", "change-ms", 1, 100, "ms"},
	} {
		value, errMetric := metric(out, f.metric)
		err = errors.Join(err, errMetric)
		rows = append(rows, atMost(f.what, value*f.scale, f.limit, f.unit, "go test -tags e2e -bench "+name+" "+pkg))
	}
	return rows, err
}
