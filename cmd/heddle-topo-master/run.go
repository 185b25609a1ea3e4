package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/publish"
	"github.com/heddle-dev/heddle/topo/master/ui"
)

// daemon is what the flags come to.
type daemon struct {
	options  *options
	log      *slog.Logger
	configs  *config.Watcher
	client   *rest.Config
	registry *prometheus.Registry

	core   *rest.RESTClient
	source *informers.Source
	master *master.Master
	levels chan []fabric.Level
}

// Run wires the daemon and runs it until ctx ends.
func (o *options) Run(ctx context.Context, log *slog.Logger, _ io.Writer) error {
	d := &daemon{options: o, log: log, registry: program.NewRegistry(), levels: make(chan []fabric.Level)}
	if err := d.wire(); err != nil {
		return err
	}
	server, secure, err := d.server()
	if err != nil {
		return err
	}
	publisher, err := d.publisher()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		d.configs.Run, d.relevel, d.source.Run, d.master.Run, d.slim,
		func(ctx context.Context) error { return server.Run(ctx, o.listen, secure) },
		func(ctx context.Context) error { return d.publish(ctx, publisher) },
	} {
		group.Go(func() error { return run(ctx) })
	}
	log.InfoContext(ctx, "started", "version", version, "listen", o.listen, "mode", o.mode)
	return group.Wait()
}

// wire makes what everything else needs. It fails on a bad configuration: a
// daemon that starts wrong should not start.
func (d *daemon) wire() error {
	o := d.options
	var err error
	if d.configs, err = config.NewWatcher(o.Config, d.log); err != nil {
		return err
	}
	if d.client, err = nodesync.LoadConfig(o.Kubeconfig); err != nil {
		return err
	}
	d.client.QPS, d.client.Burst = float32(o.rate.qps), o.rate.burst
	d.client.UserAgent = "heddle-topo-master/" + version
	if d.core, err = informers.CoreClient(d.client); err != nil {
		return err
	}
	topology, err := informers.TopologyClient(d.client)
	if err != nil {
		return err
	}
	cluster := &d.configs.Current().Cluster
	if o.gpuResource == "" {
		o.gpuResource = cluster.Resources.GPU
	}
	levels, err := o.preset(&cluster.Topology)
	if err != nil {
		return fmt.Errorf("topology levels: %w", err)
	}
	d.source = informers.New(informers.Options{
		Core: d.core, Topology: topology, GPU: o.gpuResource, Pods: o.countPods, Manager: publish.FieldManager,
		IsTier: export.IsTier(o.templates),
	})
	d.master, err = master.New(master.Options{
		Source: d.source, CountsPods: o.countPods, Levels: levels, NewLevels: d.levels, StaleAfter: o.staleAfter, Log: d.log,
	})
	if err != nil {
		return err
	}
	d.master.Register(d.registry)
	return nil
}

func (d *daemon) server() (*httpapi.Server, *tls.Config, error) {
	o := d.options
	options := httpapi.Options{
		Views: d.master, Templates: o.templates, Page: ui.Files(), Policy: ui.Policy, Registry: d.registry,
		Contact: d.source.Contact, Alive: d.master.Alive, Ready: d.master.Ready, Log: d.log,
	}
	if o.authenticate {
		options.Gate = httpapi.NewTokenGate(d.core, d.log)
	}
	if o.tlsCert == "" {
		return httpapi.New(options), nil, nil
	}
	certificate, err := httpapi.NewCertificate(o.tlsCert, o.tlsKey, d.log)
	if err != nil {
		return nil, nil, err
	}
	return httpapi.New(options), certificate.Config(), nil
}

func (d *daemon) publisher() (*publish.Publisher, error) {
	objects, err := metadata.NewForConfig(d.client)
	if err != nil {
		return nil, fmt.Errorf("make a client for metadata: %w", err)
	}
	return publish.New(publish.Options{
		Views: d.master, Objects: objects, Raw: d.core, Exports: d.options.exports, Templates: d.options.templates,
		Force: d.options.labelConflicts == "force", Registry: d.registry, Log: d.log,
	}), nil
}

func (d *daemon) publish(ctx context.Context, p *publish.Publisher) error {
	if !d.options.leaderElect {
		p.Lead(ctx)
		return nil
	}
	return p.Run(ctx, d.client, publish.Lease{
		Namespace: d.options.namespace, Name: d.options.lease, Identity: d.options.identity,
	})
}

// relevel hands the levels on when the configuration changes them.
func (d *daemon) relevel(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.configs.Changed():
		}
		levels, err := d.options.preset(&d.configs.Current().Cluster.Topology)
		if err != nil {
			d.log.ErrorContext(ctx, "new levels refused, the old ones stay", "err", err)
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case d.levels <- levels:
		}
	}
}

// The heap's room for garbage, in percent of what lives. Reading the cluster
// makes much at once; then the map lives long and what comes and goes is small.
const (
	readingGC = 60
	steadyGC  = 15
)

// slim bounds the heap, and gives the memory back that reading the whole
// cluster took. GOGC in the environment wins.
func (d *daemon) slim(ctx context.Context) error {
	own := os.Getenv("GOGC") == ""
	if own {
		debug.SetGCPercent(readingGC)
	}
	for {
		v, next := d.master.Current()
		if v != nil {
			if own {
				debug.SetGCPercent(steadyGC)
			}
			debug.FreeOSMemory()
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}
