// Package featurediscovery is heddle-feature-discovery: it labels and taints its own Node by the
// machine's hardware and the configuration.
//
// It calls discovery/host, which reads hardware, discovery/labels, which decides, and
// discovery/nodesync, which writes the Node, and reports errors.
package featurediscovery

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/kube"
)

// Name is the name of the daemon.
const Name = "heddle-feature-discovery"

// New returns the daemon of this version.
func New(version string) program.Daemon { return &options{version: version} }

type options struct {
	version string

	program.Flags
	program.Host
	outputFile, metricsAddress string
	oneshot, dryRun, cleanup   bool
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	o.RegisterHost(fs, time.Minute)
	fs.BoolVar(&o.oneshot, "oneshot", false, "scan once, write, and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "scan once, print what would change, write nothing, and exit")
	fs.BoolVar(&o.cleanup, "cleanup", false,
		"remove every label and taint that this daemon owns; without --oneshot stay idle then, for a DaemonSet")
	fs.StringVar(&o.outputFile, "output-file", "",
		"write the labels to this node-feature-discovery feature file, not to the Node; no taints, no API server")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9101", "address of /metrics, /healthz and /readyz; empty: none")
}

// Check implements [program.Daemon].
func (o *options) Check() error {
	if o.cleanup && o.dryRun {
		return errors.New("--cleanup and --dry-run exclude each other")
	}
	return o.CheckHost()
}

// Run implements [program.Daemon]. It fails on an invalid configuration or machine file.
func (o *options) Run(ctx context.Context, log *slog.Logger, stdout io.Writer) error {
	registry := program.NewRegistry(o.version)
	d := &daemon{
		nodeName: o.NodeName, interval: o.Interval, cleanup: o.cleanup, vendors: host.Vendors(), log: log,
		metrics: newMetrics(registry), warned: map[string]string{},
	}
	var err error
	if d.configs, err = config.NewWatcher(o.Config, &rule.CEL{}, log); err != nil {
		return err
	}
	registry.MustRegister(program.ConfigValid(Name, d.configs))
	syncer, err := o.connect(d, stdout)
	if err != nil {
		return err
	}
	if !o.IsReplay() {
		d.booted = booted(o.ProcRoot, time.Now())
		if d.node != nil {
			d.release = host.NewRelease()
			o.Release = d.release
		}
	}
	if d.machines, err = o.Open(log); err != nil {
		return err
	}
	if o.oneshot || o.dryRun {
		return d.once(ctx, syncer)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.configs.Run(ctx) })
	group.Go(func() error { return d.machines.Run(ctx) })
	if d.node != nil {
		group.Go(func() error { return d.node.Run(ctx) })
	}
	group.Go(func() error { return d.run(ctx) })
	group.Go(func() error {
		return program.Serve(ctx, log, o.metricsAddress, registry, d.alive, d.metrics.ready, nil)
	})
	log.InfoContext(ctx, "started", "version", o.version, "node", o.NodeName, "machine", o.Machine)
	return group.Wait()
}

// connect chooses the destination of the labels. Only the Node needs an API server; a dry run
// uses one if it can. The Syncer is nil without one.
func (o *options) connect(d *daemon, stdout io.Writer) (syncer *nodesync.Syncer, err error) {
	if o.outputFile != "" {
		d.sink = fileSink{path: o.outputFile}
	} else {
		client, err := kube.NewClient(o.Kubeconfig, "heddle-feature-discovery/"+o.version)
		switch {
		case err == nil:
			d.node = nodesync.NewWatch(client, o.NodeName)
			syncer = nodesync.New(client, o.NodeName)
			d.sink = syncer
		case !o.dryRun:
			return nil, err
		}
	}
	if o.dryRun {
		d.sink = printSink{out: stdout}
	}
	return syncer, nil
}

// once implements --oneshot: one scan, one write.
func (d *daemon) once(ctx context.Context, syncer *nodesync.Syncer) error {
	if syncer != nil {
		own, err := syncer.Node(ctx)
		if err != nil {
			return err
		}
		d.node.Keep(own)
		d.release.Set(program.Released(own.Annotations))
	}
	m := d.machines.Scan(ctx)
	if m == nil {
		return errors.New("the machine cannot be read")
	}
	return d.round(ctx, m)
}

// sink receives the desired labels and taints; a [nodesync.Syncer] writes them to the Node.
type sink interface {
	// Sync applies them. It must be cheap when nothing changed.
	Sync(ctx context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error)
	// Warn reports a problem to operators.
	Warn(ctx context.Context, reason, message string) error
}

// logged leaves warnings to the daemon's log.
type logged struct{}

func (logged) Warn(context.Context, string, string) error { return nil }

// fileSink writes the labels to a file for node-feature-discovery's local source, one
// key=value per line. Such files have no taints.
type fileSink struct {
	logged

	path string
}

// maxFeatureFile is node-feature-discovery's limit, in bytes.
const maxFeatureFile = 64 << 10

// Sync replaces the file if its content differs.
func (s fileSink) Sync(_ context.Context, _ *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(want.Labels)) {
		fmt.Fprintf(&b, "%s=%s\n", key, want.Labels[key])
	}
	if b.Len() > maxFeatureFile {
		return nodesync.Result{}, fmt.Errorf("feature file %s: %d bytes exceed node-feature-discovery's limit of %d",
			s.path, b.Len(), maxFeatureFile)
	}
	if hostfile.Holds(s.path, b.Bytes()) {
		return nodesync.Result{}, nil
	}
	// The directory is node-feature-discovery's: without it nobody reads the file.
	_, err := os.Stat(filepath.Dir(s.path))
	if err == nil {
		err = hostfile.Write(s.path, b.Bytes(), 0o644, hostfile.Quick)
	}
	if err != nil {
		return nodesync.Result{}, fmt.Errorf("write feature file: %w", err)
	}
	return nodesync.Result{Writes: 1}, nil
}

// printSink implements --dry-run: it prints the changes, or everything without a Node, and
// writes nothing.
type printSink struct {
	logged

	out io.Writer
}

// Sync prints the changes.
func (s printSink) Sync(_ context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	if node == nil {
		node = &corev1.Node{}
	}
	changes, conflicts := nodesync.Preview(node, want)
	for _, c := range changes {
		if _, err := fmt.Fprintln(s.out, c); err != nil {
			return nodesync.Result{}, fmt.Errorf("print the dry run: %w", err)
		}
	}
	return nodesync.Result{Conflicts: conflicts}, nil
}
