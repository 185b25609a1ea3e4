//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// benchmark is one of a package's own.
type benchmark struct {
	pkg, name string
	// time is go test's -benchtime.
	time    string
	figures []figure
}

// figure is one metric of a benchmark; scale turns it into unit.
type figure struct {
	what, metric string
	scale, limit float64
	unit         string
}

// benchmarks have figures that the documentation states.
func benchmarks() []benchmark {
	const preferred, state, agent = "./deviceplugin/preferred", "./deviceplugin/devicestate", "./deviceplugin/agent"
	const ms, normal = "ms", "2s"
	one := func(pkg, name string, f figure) benchmark { return benchmark{pkg, name, normal, []figure{f}} }
	return []benchmark{
		one("./discovery/host", "BenchmarkScan", figure{"scan of 8 GPUs and 9 HCAs, processor time", "cpu-ms/op", 1, 5, ms}),
		one("./discovery/labels", "BenchmarkCompute/rules",
			figure{"labels of 8 GPUs, three CEL rules", "ns/op", 1e-6, 1, ms}),
		one("./topo/affinity", "BenchmarkMatrix", figure{"path classes of 8 GPUs and 9 HCAs", "ns/op", 1e-6, 1, ms}),
		one(preferred, "BenchmarkEveryRequest/8",
			figure{"GPUs that go together, 8 GPUs, p99 of all requests", "p99-us", 1e-3, 0.2, ms}),
		one(preferred, "BenchmarkEveryRequest/16", figure{"the same, 16 GPUs", "p99-us", 1e-3, 2, ms}),
		one("./sharing/quota", "BenchmarkPlace/1",
			figure{"a share among 16 GPUs with 16 consumers each, p99", "p99-us", 1, 20, "us"}),
		{"./sharing/quota", "BenchmarkPlace/12", normal, []figure{
			{"the same, 12 shares of different cards", "p99-us", 1, 20, "us"},
			{"the same, allocations", "allocs/op", 1, 0, ""},
		}},
		one("./deviceplugin/server", "BenchmarkRegister",
			figure{"kubelet.sock created to registered, p99", "p99-ms", 1, 10, ms}),
		one(agent, "BenchmarkXID", figure{"XID reported, to the kubelet having the list, p99", "p99-ms", 1, 100, ms}),
		one(state, "BenchmarkPrepare", figure{"PreStartContainer with 100 bound pods, p99", "p99-ms", 1, 10, ms}),
		{state, "BenchmarkInject", normal, []figure{
			{"the runtime's CDI work per container, no other pod", "p50-ms-0", 1, 2, ms},
			{"the same, specs of 100 other pods", "p50-ms-100", 1, 20, ms},
			{"the same, specs of 200 other pods", "p50-ms-200", 1, 40, ms},
			{"100 other pods to none", "ratio-100", 1, 200, "x"},
		}},
		{agent, "BenchmarkPodsLeaveNothing", "1x", []figure{
			{"10,000 pods come and go: time", "s", 1, 60, "s"},
			{"goroutines more than before", "goroutines-more", 1, 0, ""},
			{"file descriptors more", "fds-more", 1, 0, ""},
			{"CDI specs more", "specs-more", 1, 0, ""},
			{"records and devices.json more", "files-more", 1, 0, ""},
			{"anonymous memory before", "MB-before", 1, 30, "MB"},
			{"anonymous memory more", "MB-more", 1, 5, "MB"},
		}},
	}
}

// packages runs the packages' own benchmarks.
func packages(ctx context.Context, log io.Writer) ([]row, error) {
	return runAll(ctx, log, benchmarks())
}

// shares runs pods with shares of GPUs through the plugin, on a kubelet of
// test/kubelet: it calls, waits and writes as a kubelet does, and runs no
// containers. 5 ms for each pod are 200 pods a second.
func shares(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg = "./deviceplugin/resource"
	return runAll(ctx, log, []benchmark{
		{pkg, "BenchmarkStartShare", "2s", []figure{
			{"PreStartContainer of a share beside 127 others, p99", "p99-ms", 1, 10, "ms"},
		}},
		{pkg, "BenchmarkThousandShares", "3x", []figure{
			{"1,000 pods with shares bound and released, for each", "ms/pod", 1, 5, "ms"},
		}},
	})
}

// single is a benchmark with one figure.
type single struct {
	what, pkg, name, metric string
	scale, limit            float64
	unit                    string
}

func measure(ctx context.Context, log io.Writer, singles []single) ([]row, error) {
	all := make([]benchmark, 0, len(singles))
	for _, s := range singles {
		f := figure{s.what, s.metric, s.scale, s.limit, s.unit}
		all = append(all, benchmark{s.pkg, s.name, "2s", []figure{f}})
	}
	return runAll(ctx, log, all)
}

func runAll(ctx context.Context, log io.Writer, all []benchmark) ([]row, error) {
	var rows []row
	for _, b := range all {
		out, err := goBench(ctx, log, ".", b.name, b.time, b.pkg)
		if err != nil {
			return nil, err
		}
		for _, f := range b.figures {
			value, err := metric(out, f.metric)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.name, err)
			}
			rows = append(rows, atMost(f.what, value*f.scale, f.limit, f.unit, "go test -bench "+b.name+" "+b.pkg))
		}
	}
	return rows, nil
}

// goBench runs one benchmark in the module of a folder; more is what go test is
// given beside its name, the package last. It returns what was printed.
func goBench(ctx context.Context, log io.Writer, module, name, benchtime string, more ...string) (string, error) {
	fmt.Fprintln(log, "running", name)
	args := append([]string{"test", "-run", "^$", "-bench", "^" + name + "$", "-benchtime", benchtime}, more...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return string(out), nil
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
