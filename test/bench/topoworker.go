//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// topoWorker weighs heddle-topo-worker against the API server, with a replayed
// H800 with its switches in a file, on a separate Node.
func topoWorker(
	ctx context.Context, c *cluster.Cluster, i *install.Installer, log io.Writer,
) (rows []row, err error) {
	binary, err := i.Build(ctx, nodeProgram)
	if err != nil {
		return nil, err
	}
	crd, err := os.ReadFile(filepath.Join(i.Root, "deploy/helm/heddle/crds/topology.heddle.dev_nodetopologies.yaml"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.Apply(ctx, string(crd)), c.Apply(ctx, bareNode)); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "heddle-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := placeFile(dir); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "topo-worker",
		"--node-name", "bench", "--interval", "1s", "--log-level", "warn",
		"--machine", filepath.Join(i.Root, "test/machines/h800-8ib-bond.json"), "--config", filepath.Join(dir, "config"),
		"--kubeconfig", c.Kubeconfig(), "--metrics-address", metricsAddress)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the topo-worker: %w", err)
	}
	p := &process{cmd: cmd}
	defer func() { err = errors.Join(err, p.stop()) }()
	if _, err := c.Kubectl(ctx, "wait", "nodetopology/bench", "--for=create", "--timeout=30s"); err != nil {
		return nil, err
	}
	const counter = "heddle_topology_writes_total"
	writes, err := quietWrites(ctx, log, counter)
	if err != nil {
		return nil, err
	}
	anon, rss, _, err := resident(cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	const proc = "/proc/PID/status after 100 passes, 8 HCAs and a bond"
	pass, err := measure(ctx, log, []single{{
		"topo-worker: pass over 8 InfiniBand ports, CPU time", "./topo/worker", "BenchmarkPass", "cpu-ms/op", 1, 5, "ms",
	}})
	return append(pass, []row{
		atMost("topo-worker: anonymous resident memory", anon, 15, "MB", proc+": RssAnon"),
		atMost("topo-worker: resident memory", rss, 45, "MB", proc+": VmRSS"),
		atMost("topo-worker: API writes in 100 quiet passes", writes, 0, "", counter+"; heartbeats apart"),
	}...), err
}

// placeFile writes a static topology and the configuration that names it.
func placeFile(dir string) error {
	static := filepath.Join(dir, "topology.yaml")
	return errors.Join(
		os.Mkdir(filepath.Join(dir, "config"), 0o755),
		os.WriteFile(static, []byte("version: v1\nnodes:\n  bench: {group: dragonfly-1, rails: {0: leaf-a}}\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "config/version"), []byte("v1"), 0o600),
		os.WriteFile(filepath.Join(dir, "config/cluster-config"), []byte("topology: {staticFile: "+static+"}\n"), 0o600))
}
