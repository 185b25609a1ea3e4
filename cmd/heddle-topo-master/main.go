// Command heddle-topo-master groups the cluster's nodes by how they are cabled
// and serves the map: GET /node_group and more on port 9001.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/httpapi"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

// The largest cluster that GET /v1/why lists: some 100 MB for a moment.
const explainNodes, explainPods = 5_000, 50_000

// daemon is the result of flags and configuration.
type daemon struct {
	options  *options
	log      *slog.Logger
	configs  *config.Watcher
	client   *rest.Config
	core     rest.Interface
	registry *prometheus.Registry

	source  *informers.Source
	builder *master.Builder
	levels  chan []fabric.Level
	// runs are the parts of the program.
	runs []func(context.Context) error
}

// Run wires the daemon and runs it until ctx ends.
func (o *options) Run(ctx context.Context, log *slog.Logger, _ io.Writer) error {
	d := &daemon{options: o, log: log, registry: program.NewRegistry(version), levels: make(chan []fabric.Level)}
	for _, part := range []func() error{d.connect, d.build, d.serve, d.publish} {
		if err := part(); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range append(d.runs, d.configs.Run, d.relevel, d.source.Run, d.builder.Run, d.limitHeap) {
		group.Go(func() error { return run(ctx) })
	}
	log.InfoContext(ctx, "started", "version", version, "listen", o.listen,
		"mode", d.configs.Current().Cluster.Topology.Mode)
	return group.Wait()
}

// connect reads the configuration and finds the API server.
func (d *daemon) connect() error {
	var err error
	if d.configs, err = config.NewWatcher(d.options.Config, config.Uncompiled{}, d.log); err != nil {
		return err
	}
	d.registry.MustRegister(program.ConfigValid("heddle-topo-master", d.configs))
	if d.client, err = kube.LoadConfig(d.options.Kubeconfig); err != nil {
		return err
	}
	d.client.QPS, d.client.Burst = float32(d.options.qps), d.options.burst
	d.client.UserAgent = "heddle-topo-master/" + version
	d.core, err = informers.CoreClient(d.client)
	return err
}

// gpus returns the resources of whole GPUs: one for each vendor where the configuration
// has auto.
func gpus(cluster *config.NodeConfig) (names []corev1.ResourceName) {
	for _, c := range cluster.Each() {
		names = append(names, corev1.ResourceName(c.Resources.GPU))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// build makes the informers and the builder.
func (d *daemon) build() error {
	cluster := &d.configs.Current().Cluster
	topology, err := informers.TopologyClient(d.client)
	if err != nil {
		return err
	}
	d.source = informers.New(informers.Options{
		Core: d.core, Topology: topology, GPUs: gpus(cluster),
		Manager: publish.FieldManager,
	})
	d.builder = master.New(master.Options{
		Source: d.source, Levels: levelsOf(&cluster.Topology), NewLevels: d.levels,
		Spares: d.options.spares, Pause: time.Second, Log: d.log,
	})
	d.builder.Register(d.registry)
	return nil
}

// serve serves the API and keeps its certificate current: after an invalid file the last good one
// stays.
func (d *daemon) serve() error {
	o := d.options
	options := httpapi.Options{
		Latest: d.builder.Latest(), Registry: d.registry, Contact: d.source.Contact, Alive: d.builder.Alive, Log: d.log,
		Suspects: d.source.Suspects(),
	}
	core, err := informers.CoreClient(d.client)
	if err != nil {
		return err
	}
	options.Consumers = informers.NewConsumers(core, gpus(&d.configs.Current().Cluster))
	options.Pending = explain.NewLister(d.core, explainNodes, explainPods, clock.RealClock{})
	options.Pending.Spares = o.spares
	if o.authenticate {
		auth, err := httpserve.NewAuth(d.client, httpapi.Audience, d.log)
		if err != nil {
			return err
		}
		options.Auth = auth
	}
	if o.exports.Conditions {
		options.History = informers.NewHistory(d.core, publish.FieldManager, clock.RealClock{})
	}
	var secure *tls.Config
	if o.tlsDir != "" {
		files, err := dynamiccertificates.NewDynamicServingContentFromFiles("heddle-topo-master",
			filepath.Join(o.tlsDir, "tls.crt"), filepath.Join(o.tlsDir, "tls.key"))
		if err != nil {
			return fmt.Errorf("read certificate: %w", err)
		}
		secure = &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.X509KeyPair(files.CurrentCertKeyContent())
				return &pair, err
			},
		}
		d.runs = append(d.runs, func(ctx context.Context) error {
			files.Run(ctx, 1)
			return nil
		})
	}
	server := httpapi.New(options)
	if o.probeListen != "" {
		d.listen(o.probeListen, server.ServeProbes)
	}
	d.listen(o.listen, func(ctx context.Context, l net.Listener) error { return server.Serve(ctx, l, secure) })
	return nil
}

func (d *daemon) listen(address string, serve func(context.Context, net.Listener) error) {
	d.runs = append(d.runs, func(ctx context.Context) error {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		return serve(ctx, listener)
	})
}

// publish writes into the API server, while it holds the lease if there is one.
func (d *daemon) publish() error {
	objects, err := metadata.NewForConfig(d.client)
	if err != nil {
		return fmt.Errorf("make a client for metadata: %w", err)
	}
	cluster := &d.configs.Current().Cluster
	exports := d.options.exports
	exports.CliqueLabel = cluster.Domains.Each()[0].GPUKey(wellknown.GPUClique) // The first vendor has NVLink.
	p := publish.New(publish.Options{
		Latest: d.builder.Latest(), Objects: objects, Raw: d.core, Exports: exports,
		Force: cluster.LabelConflict == config.Force, Registry: d.registry, Log: d.log,
	})
	d.runs = append(d.runs, func(ctx context.Context) error {
		if d.options.lease.Namespace == "" {
			p.Lead(ctx)
			return nil
		}
		return p.Run(ctx, d.client, d.options.lease)
	})
	return nil
}

// relevel passes the levels on when the configuration changes them.
func (d *daemon) relevel(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.configs.Changed():
		}
		select {
		case <-ctx.Done():
			return nil
		case d.levels <- levelsOf(&d.configs.Current().Cluster.Topology):
		}
	}
}

// The heap's room for garbage, in percent of what lives. Reading the cluster
// makes much at once; then the map lives long and what comes and goes is small.
const (
	readingGC = 60
	steadyGC  = 15
)

// limitHeap bounds the heap, and returns the memory that listing the whole
// cluster took. GOGC in the environment wins.
func (d *daemon) limitHeap(ctx context.Context) error {
	own := os.Getenv("GOGC") == ""
	if own {
		debug.SetGCPercent(readingGC)
	}
	for {
		first, next := d.builder.Latest().Get()
		if first != nil {
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

// version is set by the linker.
var version = "dev"

func main() { program.Main("heddle-topo-master", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, "heddle-topo-master", version, &options{}, args, stdout, stderr)
}
