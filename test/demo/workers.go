//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/discovery/replay"
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
	defaults := config.Default()
	defaults.Topology.StaticFile = config.AbsolutePath(filepath.Join(args[0], fabricName))
	if err := defaults.Complete(); err != nil {
		return err
	}
	configs := unchanging{config.New(defaults)}
	files, err := filepath.Glob(filepath.Join(args[0], "*.json"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no machine files in %s: %w", args[0], err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, file := range files {
		node := strings.TrimSuffix(filepath.Base(file), ".json")
		machines := replay.New(file, node, log)
		if machines.Scan(ctx) == nil {
			return fmt.Errorf("%s is no machine", file)
		}
		w := worker.New(worker.Options{
			NodeName: node, Machines: machines, Configs: configs, Sources: []worker.Source{static.New(log)},
			Store: worker.NewPublisher(client, node), Interval: lookEvery,
			Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: log,
		})
		group.Go(func() error { return w.Run(ctx) })
		group.Go(func() error { return rescan(ctx, machines) })
	}
	return group.Wait()
}

// rescan reads a machine file now and then. replay.Run would watch it, for which
// the kernel has 128 watchers, all of root's programs together.
func rescan(ctx context.Context, machines *replay.Replay) error {
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

// unchanging is a configuration that stays.
type unchanging struct{ config *config.Config }

func (u unchanging) Current() *config.Config  { return u.config }
func (u unchanging) Changed() <-chan struct{} { return nil }
