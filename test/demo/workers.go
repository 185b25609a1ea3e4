//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/static"
)

// lookEvery is how often the workers look at their files: a person who edits one
// is waiting.
const lookEvery = 3 * time.Second

// workers runs what heddle-topo-worker runs, for every machine file of a
// directory, in one process: simulated nodes run no pods. A worker replays its
// machine, reads the cables from the file there, publishes its node's
// NodeTopology and keeps the heartbeat.
func workers(ctx context.Context, args []string, stderr io.Writer) error {
	if len(args) != 2 {
		return errors.New("want the directory of machine files and the kubeconfig")
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client, err := client(args[1])
	if err != nil {
		return err
	}
	configs, err := configure(filepath.Join(args[0], fabricName), log)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(args[0], "*.json"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no machine files in %s: %w", args[0], err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, file := range files {
		node := strings.TrimSuffix(filepath.Base(file), ".json")
		machines := host.NewReplay(file, node, log)
		if machines.Scan(ctx) == nil {
			return fmt.Errorf("%s is no machine", file)
		}
		w := worker.New(worker.Options{
			NodeName: node, Machines: machines, Configs: configs, Sources: []worker.Source{static.New(log)},
			Publisher: worker.NewPublisher(client, node), Interval: lookEvery,
			Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: log,
		})
		group.Go(func() error { return w.Run(ctx) })
		group.Go(func() error { return rescan(ctx, machines) })
	}
	return group.Wait()
}

// rescan reads a machine file now and then. replay.Run would watch it, for which
// the kernel has 128 watchers, all of root's programs together.
func rescan(ctx context.Context, machines *host.Replay) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			machines.Scan(ctx)
		}
	}
}

// client is for many nodes at once.
func client(kubeconfig string) (rest.Interface, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	c.QPS, c.Burst = 500, 500
	return kube.ClientFor(c, "heddle-demo")
}

// configure is a configuration whose static file is this one.
func configure(staticFile string, log *slog.Logger) (*config.Watcher, error) {
	dir, err := os.MkdirTemp("", "heddle-demo")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the configuration: %w", err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{
		"version": "v1", "cluster-config": fmt.Sprintf("topology: {staticFile: %q}\n", staticFile),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write the configuration: %w", err)
		}
	}
	return config.NewWatcher(dir, config.Uncompiled{}, log)
}
