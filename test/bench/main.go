//go:build linux

// Command bench measures the figures that the documentation states, on this
// machine, and prints them beside their limits: `make bench`. A figure beyond
// its limit makes it fail. Arguments choose parts: `go run ./test/bench
// topology page`; flag -idle shortens the time for which idle daemons are
// weighed, -weeks the simulation of suspects.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// row is one figure beside its limit: the most that it may be, or the least.
type row struct {
	what          string
	figure, limit float64
	unit          string
	method        string
	least         bool
}

// atMost is a figure with an upper limit.
func atMost(what string, figure, limit float64, unit, method string) row {
	return row{what: what, figure: figure, limit: limit, unit: unit, method: method}
}

// atLeast is a figure with a lower limit.
func atLeast(what string, figure, limit float64, unit, method string) row {
	r := atMost(what, figure, limit, unit, method)
	r.least = true
	return r
}

func (r row) ok() bool {
	if r.least {
		return r.figure >= r.limit
	}
	return r.figure <= r.limit
}

// sign is the limit's.
func (r row) sign() string {
	if r.least {
		return ">="
	}
	return "<="
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// part is some figures that are measured together.
type part struct {
	name    string
	measure func(context.Context, io.Writer) ([]row, error)
}

func parts(stdout io.Writer, idle time.Duration, number int) []part {
	return []part{
		{"packages", packages},
		{"shares", shares},
		{"claims", func(ctx context.Context, log io.Writer) ([]row, error) { return claimed(ctx, log, idle) }},
		{"device-plugin", pluginProcess},
		{"footprint", func(ctx context.Context, log io.Writer) ([]row, error) { return footprint(ctx, stdout, log, idle) }},
		{"topology", topology},
		{"topo-master", topoMaster},
		{"page", page},
		{"placement", places},
		{"gangs", gangs},
		{"sgpu-scheduler", sgpuScheduler},
		{"openb", func(context.Context, io.Writer) ([]row, error) { return packed(stdout) }},
		{"schedulerperf", func(ctx context.Context, log io.Writer) ([]row, error) { return schedulerPerf(ctx, stdout, log) }},
		// Its tables are results too.
		{"queue", func(context.Context, io.Writer) ([]row, error) { return queue(stdout) }},
		{"plan", func(ctx context.Context, _ io.Writer) ([]row, error) { return forecasts(ctx, stdout) }},
		{"weeks", func(context.Context, io.Writer) ([]row, error) { return weeks(stdout) }},
		{"suspects", func(context.Context, io.Writer) ([]row, error) { return suspects(stdout, number) }},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	idle := fs.Duration("idle", 10*time.Minute, "how long idle daemons are weighed")
	number := fs.Int("weeks", 100, "how many weeks without faults of hardware are simulated; a tenth of them with faults")
	if err := fs.Parse(args); err != nil {
		return err
	}
	chosen, all := fs.Args(), parts(stdout, *idle, *number)
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	for _, name := range chosen {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown part %q: want one of %s", name, strings.Join(known, ", "))
		}
	}
	var rows []row
	for _, p := range all {
		if len(chosen) > 0 && !slices.Contains(chosen, p.name) {
			continue
		}
		got, err := p.measure(ctx, stderr)
		if err != nil {
			return err
		}
		rows = append(rows, got...)
	}
	return print(stdout, rows)
}

// print writes the table and fails if a figure is beyond its limit.
func print(w io.Writer, rows []row) error {
	fmt.Fprintf(w, "machine: %s, %d cores, load %s, %s\n\n", processor(), runtime.NumCPU(), load(), runtime.Version())
	fmt.Fprintf(w, "%-52s %10s %13s  %s\n", "what", "figure", "limit", "how")
	beyond := 0
	for _, r := range rows {
		mark := ""
		if !r.ok() {
			mark, beyond = "  BEYOND", beyond+1
		}
		fmt.Fprintf(w, "%-52s %7.3g %-2s %s %7.3g %-2s  %s%s\n",
			r.what, r.figure, r.unit, r.sign(), r.limit, r.unit, r.method, mark)
	}
	if beyond > 0 {
		return fmt.Errorf("%d of %d figures are beyond their limit", beyond, len(rows))
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
