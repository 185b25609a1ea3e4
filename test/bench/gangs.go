//go:build linux

package main

import (
	"context"
	"errors"
	"io"
)

// gangs runs the benchmarks of heddle-scheduler's module: whole schedulers in
// one process, on a client without an API server, turn by turn on 4,608 empty
// nodes in 256 groups, with the same 1,152 pods.
func gangs(ctx context.Context, log io.Writer) ([]row, error) {
	const module, to = "cmd/heddle-scheduler", "to-plain"
	const whole, others = "BenchmarkGangs", "BenchmarkOtherPods/"
	const gpus, some, none = others + "gpus", others + "some", others + "none"
	const native, ofClaims = "BenchmarkNativeGangs/", "BenchmarkClaimGangs"
	out := map[string]string{}
	for _, name := range []string{whole, ofClaims, gpus, some, none, native + "heddle", native + "kubernetes"} {
		text, err := goBench(ctx, log, module, name, "1x", ".")
		if err != nil {
			return nil, err
		}
		out[name] = text
	}
	var rows []row
	var faults []error
	for _, f := range []struct {
		sense              func(what string, figure, limit float64, unit, method string) row
		what, name, metric string
		limit              float64
		unit               string
	}{
		{atLeast, "gangs of 18 pods, a second, to plain kube-scheduler", whole, to, 1.3, "x"},
		{atLeast, "the same, pods a second", whole, "heddle-pods/s", 250, ""},
		{atMost, "the same, groups per gang", whole, "heddle-groups/gang", 1, ""},
		{atLeast, "gangs of 18 pods with claims, to kube-scheduler", ofClaims, to, 1.2, "x"},
		{atLeast, "pods of no gang with 8 GPUs, to kube-scheduler", gpus, to, 0.95, "x"},
		{atLeast, "pods of no gang with 2 GPUs, to kube-scheduler", some, to, 0.9, "x"},
		{atLeast, "pods of no gang without GPUs, to kube-scheduler", none, to, 0.95, "x"},
	} {
		value, err := metric(out[f.name], f.metric)
		faults = append(faults, err)
		rows = append(rows, f.sense(f.what, value, f.limit, f.unit, "go test -C "+module+" -bench "+f.name))
	}
	ours, err := metric(out[native+"heddle"], "ms/gang")
	faults = append(faults, err)
	theirs, err := metric(out[native+"kubernetes"], "ms/gang")
	faults = append(faults, err)
	rows = append(rows, atLeast("native PodGroups of 18, the time of Kubernetes' own topology rule to heddle's",
		theirs/ours, 1, "x", "go test -C "+module+" -bench BenchmarkNativeGangs"))
	return rows, errors.Join(faults...)
}
