//go:build linux

package main

import (
	"context"
	"io"
)

// pluginProcess weighs heddle-device-plugin beside NVIDIA's k8s-device-plugin (v0.19.0,
// test/peers/nvidia), each on the same stand-in for the driver, beside a kubelet of its own
// and without an API server, in one run and in turns. The least plugin (test/bench/deviceplugin/least)
// shows what gRPC and Go take by themselves. Memory and processor time have what NVIDIA's
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
			{"Allocate alone of a GPU to the least plugin's, p50", "least-p50-ratio", 1, 2, "x"},
			{"the same, p99", "least-p99-ratio", 1, 3, "x"},
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
			{"the same, the least plugin, p50", "least-p50-ms", 1, 10, "ms"},
			{"the same, p99", "least-p99-ms", 1, 10, "ms"},
		}},
	})
}
