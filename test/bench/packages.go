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
		one("./topo/worker", "BenchmarkPass",
			figure{"topo-worker: a pass over 8 InfiniBand ports, processor time", "cpu-ms/op", 1, 5, ms}),
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

// topology runs the benchmarks of the tree: a fat tree of 8 rails, 5 % of
// whose ports are mis-cabled, dead or swapped.
func topology(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg, ms = "./topo/fabric", "ms"
	one := func(name string, f figure) benchmark { return benchmark{pkg, name, "2s", []figure{f}} }
	return runAll(ctx, log, []benchmark{
		one("BenchmarkFirstTree/4608", figure{"first tree of 4,608 nodes, from reports to bytes", "ns/op", 1e-6, 50, ms}),
		one("BenchmarkFirstTree/16384", figure{"the same, 16,384 nodes", "ns/op", 1e-6, 150, ms}),
		// One tree takes a second: the time that others get would make it one of one.
		{pkg, "BenchmarkFirstTree/100000", "5x", []figure{{"the same, 100,000 nodes", "ns/op", 1e-9, 1.5, "s"}}},
		one("BenchmarkChange/status/16384", figure{"one of 16,384 nodes' status to the new answer", "ns/op", 1e-6, 10, ms}),
		one("BenchmarkChange/cable/16384", figure{"the same, one cable", "ns/op", 1e-6, 10, ms}),
		one("BenchmarkChange/moves/16384", figure{"the same, a node that moves to another group", "ns/op", 1e-6, 10, ms}),
		one("BenchmarkChange/comes-goes/16384", figure{"the same, a node that comes or goes", "ns/op", 1e-6, 10, ms}),
		one("BenchmarkChange/comes-goes/100000", figure{"the same, of 100,000 nodes", "ns/op", 1e-6, 100, ms}),
		one("BenchmarkMemory", figure{"the map of 16,384 nodes, beside its reports", "MiB", 1, 64, "MB"}),
	})
}

// pluginProcess weighs heddle-device-plugin beside NVIDIA's k8s-device-plugin (v0.19.1,
// test/peers/nvidia), each on the same stand-in for the driver, beside a kubelet of its own
// and without an API server, in one run and in turns. Memory and processor time have what NVIDIA's
// v0.20.0 took earlier on another machine as limits too.
func pluginProcess(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg = "./test/bench/deviceplugin"
	return runAll(ctx, log, []benchmark{
		{pkg, "BenchmarkIdle", "1x", []figure{
			{"device-plugin alone, idle: anonymous memory", "anon-MB", 1, 6, "MB"},
			{"the same, to NVIDIA's plugin", "nvidia-anon-ratio", 1, 1, "x"},
			{"device-plugin alone, idle: processor time a minute", "cpu-s/min", 1, 0.11, "s"},
			{"the same, to NVIDIA's plugin", "nvidia-cpu-ratio", 1, 1, "x"},
		}},
		{pkg, "BenchmarkAdmission", "300x", []figure{
			{"GetPreferredAllocation and Allocate of a GPU to NVIDIA's plugin's, p50", "nvidia-p50-ratio", 1, 1, "x"},
			{"the same, p99", "nvidia-p99-ratio", 1, 1, "x"},
			{"GetPreferredAllocation and Allocate of a GPU, p50", "p50-us", 1e-3, 2, "ms"},
			{"the same, p99", "p99-us", 1e-3, 10, "ms"},
		}},
		{pkg, "BenchmarkAllocate", "1000x", []figure{
			{"Allocate alone of a GPU to NVIDIA's plugin's, p50", "nvidia-p50-ratio", 1, 1, "x"},
			{"the same, p99", "nvidia-p99-ratio", 1, 1, "x"},
			{"Allocate alone of a GPU, p50", "p50-us", 1e-3, 1, "ms"},
			{"the same, p99", "p99-us", 1e-3, 5, "ms"},
		}},
		{pkg, "BenchmarkRegistration", "100x", []figure{
			{"kubelet.sock created to GPUs offered, to NVIDIA's plugin's, p50", "nvidia-p50-ratio", 1, 1, "x"},
			{"the same, p99", "nvidia-p99-ratio", 1, 1, "x"},
			{"kubelet.sock created to GPUs offered, p50", "p50-ms", 1, 10, "ms"},
			{"the same, p99", "p99-ms", 1, 10, "ms"},
			{"the same beside 512 shared HCAs, p50", "hcas-p50-ms", 1, 10, "ms"},
			{"the same, p99", "hcas-p99-ms", 1, 10, "ms"},
		}},
	})
}

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
