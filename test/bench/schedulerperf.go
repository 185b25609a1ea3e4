//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/heddle-dev/heddle/test/cluster"
)

const (
	perfModule   = "test/bench/schedulerperf"
	perfNative   = "native"
	perfTuned    = "tuned"
	perfHeddle   = "heddle"
	throughput   = "SchedulingThroughput"
	duration     = "SchedulingDuration"
	algorithm    = "scheduler_podgroup_scheduling_algorithm_duration_seconds"
	perfMinRatio = 0.97
)

// perfWorkload is one workload of upstream's scheduler_perf.
type perfWorkload struct {
	what, topic, bench string
	// least is the ratio of pods a second to the best of kube-scheduler's settings.
	least float64
	// most is milliseconds for the algorithm of one PodGroup; 0 means unlimited.
	most float64
	// tuned reports that kube-scheduler has a stronger setting than its defaults.
	tuned bool
	// pods is the number of pods of a workload that ends before upstream samples its rate; 0 for others.
	pods float64
}

func perfWorkloads() []perfWorkload {
	const gangs, tas = "podgroup/gangscheduling", "podgroup/tas"
	return []perfWorkload{
		{
			what: "1,000 gangs of 3", topic: gangs, bench: "GangScheduling/5000Nodes_1000Gangs_3000Pods",
			least: 1.5, most: 4, tuned: true,
		},
		{
			what: "3 gangs of 1,000", topic: gangs, bench: "GangScheduling/5000Nodes_3Gangs_3000Pods_1000PerGroup",
			least: 1.5, most: 300, tuned: true,
		},
		{
			what: "750 gangs of 4, each in a rack", topic: tas,
			bench: "TopologyAwareScheduling/5000Nodes_750Gangs_3000Pods", least: 8,
		},
		{
			what: "3 gangs of 1,000, each in a rack", topic: tas,
			bench: "TopologyAwareScheduling/5000Nodes_3Gangs_3000Pods_1000PerGroup", least: 8, most: 300,
		},
		{
			what: "a gang of 100 evicts 1,000 pods", topic: "workload_preemption", pods: 100,
			bench: "GangPreemptionBasic/100Nodes_1PreemptorGang_100Pods_Evicting_1000InitPods", least: perfMinRatio,
		},
		{
			what: "plain pods", topic: "misc", bench: "SchedulingBasic/5000Nodes_10000Pods",
			least: perfMinRatio, tuned: true,
		},
		{
			what: "pods with claims, 200 nodes", topic: "dra",
			bench: "SchedulingWithResourceClaimTemplate/2000pods_200nodes", least: 0.95,
		},
		{
			what: "plain pods that spread", topic: "topology_spreading",
			bench: "TopologySpreading/5000Nodes_5000Pods", least: perfMinRatio,
		},
	}
}

// perfResult is a contender's result: pods a second, and the mean time of the algorithm for a
// PodGroup in milliseconds.
type perfResult struct{ pods, algorithm float64 }

// schedulerPerf runs workloads of upstream's scheduler_perf by kube-scheduler and by heddle-scheduler.
func schedulerPerf(ctx context.Context, stdout, log io.Writer) ([]row, error) {
	dir, err := os.MkdirTemp("", "heddle-perf-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "perf.test")
	build := exec.CommandContext(ctx, "go", "test", "-C", perfModule, "-c", "-vet=off", "-o", binary, ".")
	// Upstream finds its API server's package by the path of its source.
	build.Env, build.Stderr = append(os.Environ(), "GOFLAGS=-tags=grpcnotrace"), log
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("go test -c ./%s: %w", perfModule, err)
	}
	binaries, err := cluster.Builder{Log: log}.Build(ctx)
	if err != nil {
		return nil, err
	}
	var rows []row
	fmt.Fprintf(stdout, "%-36s %12s %12s %12s   pods/s, and ms of the algorithm for a PodGroup\n",
		"scheduler_perf, 5,000 nodes", "native", "tuned", perfHeddle)
	for _, w := range perfWorkloads() {
		got := map[string]perfResult{}
		for _, contender := range []string{perfNative, perfTuned, perfHeddle} {
			if contender == perfTuned && !w.tuned {
				continue
			}
			if got[contender], err = perfRun(ctx, binary, binaries.Kubernetes, dir, contender, w); err != nil {
				return nil, err
			}
		}
		native, tuned, heddle := got[perfNative], got[perfTuned], got[perfHeddle]
		fmt.Fprintf(stdout, "%-36s %6.1f %5.1f %6.1f %5.1f %6.1f %5.1f\n", w.what,
			native.pods, native.algorithm, tuned.pods, tuned.algorithm, heddle.pods, heddle.algorithm)
		ratio := heddle.pods / max(native.pods, tuned.pods)
		rows = append(rows, atLeast("scheduler_perf: "+w.what+", pods/s", ratio, w.least, "x", w.bench))
		if w.most > 0 {
			rows = append(rows, atMost("the same, algorithm for a PodGroup", heddle.algorithm, w.most, "ms", w.bench))
		}
	}
	return rows, nil
}

// perfRun runs one workload in a process of its own, since upstream never resets the histogram of the algorithm.
func perfRun(ctx context.Context, binary, etcd, dir, contender string, w perfWorkload) (perfResult, error) {
	results, err := os.MkdirTemp(dir, "results-*")
	if err != nil {
		return perfResult{}, err
	}
	bench := "^BenchmarkPerfScheduling$/^" + strings.ReplaceAll(regexp.QuoteMeta(w.bench), "/", "$/^") + "$"
	cmd := exec.CommandContext(ctx, binary,
		"-test.run=^$", "-test.bench="+bench, "-test.benchtime=1x", "-test.timeout=30m",
		"-perf-scheduling-label-filter=", "-topic="+w.topic, "-contender="+contender, "-data-items-dir="+results)
	cmd.Dir, cmd.Env = perfModule, append(os.Environ(), "PATH="+etcd+":"+os.Getenv("PATH"))
	// A rate below upstream's threshold, which is for its machines, fails the benchmark, but it has results.
	out, fault := cmd.CombinedOutput()
	files, err := filepath.Glob(filepath.Join(results, "*.json"))
	if err != nil || len(files) != 1 {
		return perfResult{}, fmt.Errorf("%s by %s: %d files of results; %w\n%s",
			w.bench, contender, len(files), errors.Join(fault, err), out[max(0, len(out)-4000):])
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return perfResult{}, err
	}
	r, err := perfDecode(data, w.pods)
	if err != nil {
		return r, fmt.Errorf("%s by %s: %w", w.bench, contender, errors.Join(fault, err))
	}
	return r, nil
}

// perfDecode reads scheduler_perf's data items. Without a rate of upstream's it takes the time of the pods.
func perfDecode(data []byte, pods float64) (r perfResult, err error) {
	var items struct {
		DataItems []struct {
			Data   map[string]float64 `json:"data"`
			Labels map[string]string  `json:"labels"`
		} `json:"dataItems"`
	}
	if err := json.Unmarshal(data, &items); err != nil {
		return r, err
	}
	var rate float64
	for _, i := range items.DataItems {
		switch i.Labels["Metric"] {
		case throughput:
			r.pods = i.Data["Average"]
		case duration:
			rate = pods / i.Data["Duration"]
		case algorithm:
			r.algorithm = i.Data["Average"]
		}
	}
	if r.pods = cmp.Or(r.pods, rate); r.pods == 0 {
		return r, fmt.Errorf("no %s in the results", throughput)
	}
	return r, nil
}
