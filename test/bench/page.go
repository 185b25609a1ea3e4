//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// page measures topo-master's page at 5,000 nodes in a headless Chromium, where
// there is one.
func page(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg, name = "./test/e2e/page", "BenchmarkPage"
	fmt.Fprintln(log, "running", name)
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "e2e", "-run", "^$", "-bench", "^"+name+"$",
		"-benchtime", "1x", pkg)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	if strings.Contains(string(out), "no chromium") {
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
		value, errMetric := metric(string(out), f.metric)
		err = errors.Join(err, errMetric)
		rows = append(rows, row{f.what, value * f.scale, f.limit, f.unit, "go test -tags e2e -bench " + name + " " + pkg})
	}
	return rows, err
}
