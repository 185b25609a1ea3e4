//go:build linux

package main

import (
	"context"
	"io"
)

// pluginProcess weighs heddle-device-plugin as NVIDIA's k8s-device-plugin was
// weighed, without an API server, beside a driver's library that is none: idle
// memory and processor time have what that plugin (v0.20.0) took earlier, beside
// another stand-in on such a machine, as their limits, since its module is not to be had here and the two
// cannot run in turns. Beside each figure stands that of the least plugin
// (test/bench/deviceplugin/least), which shows what gRPC and Go take by themselves.
func pluginProcess(ctx context.Context, log io.Writer) ([]row, error) {
	const pkg = "./test/bench/deviceplugin"
	return runAll(ctx, log, []benchmark{
		{pkg, "BenchmarkIdle", "1x", []figure{
			{"device-plugin alone, idle: anonymous memory", "anon-MB", 1, 6, "MB"},
			{"the same: processor time a minute", "cpu-s/min", 1, 0.11, "s"},
			{"the least plugin, idle: anonymous memory", "least-anon-MB", 1, 6, "MB"},
			{"the same: processor time a minute", "least-cpu-s/min", 1, 0.11, "s"},
		}},
		{pkg, "BenchmarkAllocate", "3s", []figure{
			{"Allocate of a GPU to the least plugin's, p50", "p50-ratio", 1, 2, "x"},
			{"the same, p99", "p99-ratio", 1, 3, "x"},
			{"the same, p50", "p50-us", 1e-3, 1, "ms"},
			{"the same, p99", "p99-us", 1e-3, 5, "ms"},
		}},
		{pkg, "BenchmarkRegistration", "100x", []figure{
			{"kubelet.sock created to GPUs offered, the process, p99", "p99-ms", 1, 10, "ms"},
			{"the same, p50", "p50-ms", 1, 10, "ms"},
			{"the same, the least plugin, p99", "least-p99-ms", 1, 10, "ms"},
			{"the same, p50", "least-p50-ms", 1, 10, "ms"},
		}},
	})
}
