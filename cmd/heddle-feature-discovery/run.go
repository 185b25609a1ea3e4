package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/feature"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/internal/kube"
)

// runner is whatever works until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// parts is the wired daemon before it runs.
type parts struct {
	options  feature.Options
	machines program.Machine
	registry *prometheus.Registry
	runners  []runner
	watch    *nodesync.Watch
	syncer   *nodesync.Syncer
}

// wire builds everything that flags decide. It fails on a bad configuration
// and on a bad machine file: a daemon that starts wrong should not start.
func wire(ctx context.Context, o *options, log *slog.Logger, stdout io.Writer) (*parts, error) {
	registry := program.NewRegistry()
	p := &parts{registry: registry, options: feature.Options{
		NodeName: o.NodeName, Interval: o.Interval, Metrics: feature.NewMetrics(registry), Log: log,
		Vendors: vendors.All(),
	}}
	configs, err := config.NewWatcher(o.Config, log)
	if err != nil {
		return nil, err
	}
	p.options.Configs = configs
	if p.machines, err = o.Open(nil, log); err != nil {
		return nil, err
	}
	p.options.Machines = p.machines
	p.runners = append(p.runners, configs, p.machines)
	if err := p.wireSink(o, stdout); err != nil {
		return nil, err
	}
	return p, ctx.Err()
}

// wireSink chooses where the labels go. Only the Node needs an API server; a
// dry run asks one if it can.
func (p *parts) wireSink(o *options, stdout io.Writer) error {
	if o.outputFile != "" {
		p.options.Sink = feature.FileSink{Path: o.outputFile}
	} else {
		client, err := kube.NewClient(o.Kubeconfig, "heddle-feature-discovery/"+version)
		switch {
		case err == nil:
			p.watch = nodesync.NewWatch(client, o.NodeName)
			p.syncer = nodesync.New(nodesync.Options{Client: client, Node: o.NodeName})
			p.options.Node = p.watch
			p.options.Sink = feature.NodeSink{Syncer: p.syncer}
		case !o.dryRun:
			return err
		}
	}
	if o.dryRun {
		p.options.Sink = feature.PrintSink{Out: stdout}
	}
	if o.cleanup {
		p.options.Sink = feature.NothingSink{Sink: p.options.Sink}
	}
	return nil
}

// Run implements [program.Daemon].
func (o *options) Run(ctx context.Context, log *slog.Logger, stdout io.Writer) error {
	program.SmallHeap()
	if o.oneshot {
		return once(ctx, o, log, stdout)
	}
	return serve(ctx, o, log, stdout)
}

func serve(ctx context.Context, o *options, log *slog.Logger, stdout io.Writer) error {
	p, err := wire(ctx, o, log, stdout)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if p.watch != nil {
		p.runners = append(p.runners, p.watch)
	}
	for _, r := range append(p.runners, feature.New(p.options)) {
		group.Go(func() error { return r.Run(ctx) })
	}
	group.Go(func() error {
		return program.Serve(ctx, o.metricsAddress, p.registry, p.options.Alive, p.options.Metrics.Ready)
	})
	log.InfoContext(ctx, "started", "version", version, "node", o.NodeName, "machine", o.Machine)
	return group.Wait()
}

// once is --oneshot: one scan, one write.
func once(ctx context.Context, o *options, log *slog.Logger, stdout io.Writer) error {
	p, err := wire(ctx, o, log, stdout)
	if err != nil {
		return err
	}
	m := p.machines.Scan(ctx)
	if m == nil {
		return errors.New("no machine: nothing could be read")
	}
	p.options.Machines = still{m}
	if p.syncer != nil {
		own, err := p.syncer.Node(ctx)
		if err != nil {
			return err
		}
		p.watch.Keep(own)
	}
	return feature.New(p.options).Round(ctx)
}

// still is a machine that does not change.
type still struct{ m *machine.Machine }

func (s still) Machine() *machine.Machine { return s.m }
func (s still) Changed() <-chan struct{}  { return nil }
