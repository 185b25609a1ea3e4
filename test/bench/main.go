//go:build linux

// Command bench measures the figures that the documentation states, on this
// machine, and prints them beside their limits: `make bench`. A figure over
// its limit makes it fail.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// row is one figure. Lower is better.
type row struct {
	what   string
	figure float64
	limit  float64
	unit   string
	method string
}

func (r row) ok() bool { return r.figure <= r.limit }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stdout, stderr io.Writer) error {
	var rows []row
	for _, measure := range []func(context.Context, io.Writer) ([]row, error){decisions, daemons, topology, topoMaster} {
		got, err := measure(ctx, stderr)
		if err != nil {
			return err
		}
		rows = append(rows, got...)
	}
	return print(stdout, rows)
}

// print writes the table and fails if a figure is over its limit.
func print(w io.Writer, rows []row) error {
	fmt.Fprintf(w, "machine: %s, %d cores, load %s, %s\n\n", processor(), runtime.NumCPU(), load(), runtime.Version())
	fmt.Fprintf(w, "%-52s %10s %10s  %s\n", "what", "figure", "limit", "how")
	over := 0
	for _, r := range rows {
		mark := ""
		if !r.ok() {
			mark, over = "  OVER", over+1
		}
		fmt.Fprintf(w, "%-52s %7.3g %-2s %7.3g %-2s  %s%s\n", r.what, r.figure, r.unit, r.limit, r.unit, r.method, mark)
	}
	if over > 0 {
		return fmt.Errorf("%d of %d figures are over their limit", over, len(rows))
	}
	return nil
}

func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// alloc is the package that chooses GPUs.
const alloc = "./deviceplugin/alloc"

// benchmark is a figure that one of the packages' own benchmarks measures.
type benchmark struct {
	what, pkg, name, metric string
	scale, limit            float64
	unit                    string
}

// decisions runs the benchmarks of what a node decides.
func decisions(ctx context.Context, log io.Writer) ([]row, error) {
	return measure(ctx, log, []benchmark{
		{"scan of 8 GPUs and 9 HCAs, processor time", "./discovery/host", "BenchmarkScan", "cpu-ms/op", 1, 5, "ms"},
		{"labels of 8 GPUs, three CEL rules", "./discovery/labels", "BenchmarkCompute/rules", "ns/op", 1e-6, 1, "ms"},
		{"path classes of 8 GPUs and 9 HCAs", "./topo/affinity", "BenchmarkMatrix", "ns/op", 1e-6, 1, "ms"},
		{"GPUs that go together, 8 GPUs, p99 of all requests", alloc, "BenchmarkEveryRequest/8", "p99-us", 1e-3, 0.2, "ms"},
		{"the same, 16 GPUs", alloc, "BenchmarkEveryRequest/16", "p99-us", 1e-3, 2, "ms"},
		{"kubelet.sock created to registered, p99", "./deviceplugin/plugin", "BenchmarkRegister", "p99-ms", 1, 10, "ms"},
		{"PreStartContainer with 100 bound pods, p99", "./deviceplugin/binder", "BenchmarkBind", "p99-ms", 1, 10, "ms"},
	})
}

func measure(ctx context.Context, log io.Writer, benchmarks []benchmark) ([]row, error) {
	var rows []row
	for _, b := range benchmarks {
		fmt.Fprintln(log, "running", b.name)
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+b.name+"$", "-benchtime", "2s", b.pkg)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", b.name, err, out)
		}
		value, err := metric(string(out), b.metric)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
		rows = append(rows, row{b.what, value * b.scale, b.limit, b.unit, "go test -bench " + b.name + " " + b.pkg})
	}
	return rows, nil
}

// metric finds a value by its unit in the output of go test -bench.
func metric(out, unit string) (float64, error) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		for i := 1; i < len(fields); i++ {
			if strings.HasPrefix(line, "Benchmark") && fields[i] == unit {
				var v float64
				_, err := fmt.Sscan(fields[i-1], &v)
				return v, err
			}
		}
	}
	return 0, fmt.Errorf("no %s in %q", unit, out)
}
