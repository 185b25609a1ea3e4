// Package topoworker is heddle-topo-worker: it finds out where the cables of its node end and
// publishes the result as the node's NodeTopology.
package topoworker

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/discovery/nvswitch"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/clustermanager"
	"github.com/heddle-dev/heddle/topo/worker/ib"
	"github.com/heddle-dev/heddle/topo/worker/lldp"
	"github.com/heddle-dev/heddle/topo/worker/static"
)

// Name is the name of the daemon.
const Name = "heddle-topo-worker"

// New returns the daemon of this version.
func New(version string) program.Daemon { return &options{version: version} }

type options struct {
	version string

	program.Flags
	program.Host
	clusterManagerSecret, mkeySecret, metricsAddress string
	dryRun                                           bool
	countersInterval                                 time.Duration
}

// Register implements [program.Daemon].
func (o *options) Register(fs *flag.FlagSet) {
	// A replay has no cables: neither ib nor lldp is asked.
	o.RegisterHost(fs, 30*time.Second)
	fs.StringVar(&o.clusterManagerSecret, "cluster-manager-secret", "",
		"directory with the files user, password and perhaps ca.crt of a Secret; empty: no authentication")
	fs.StringVar(&o.mkeySecret, "m-key-secret", "",
		"directory with the M_Keys of InfiniBand fabrics: the file default, or one of the subnet's prefix; empty: none")
	fs.DurationVar(&o.countersInterval, "counters-interval", rdma.CountersEvery,
		"time between two readings of the ports' error counters, at least 1s")
	fs.BoolVar(&o.dryRun, "dry-run", false,
		"wait until every source has answered, print the NodeTopology, write nothing, and exit")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":9103", "address of /metrics, /healthz and /readyz; empty: none")
}

// Check implements [program.Daemon].
func (o *options) Check() error { return o.CheckHost() }

// runner runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// parts is the wired worker before it runs.
type parts struct {
	worker   *worker.Worker
	machines program.Machine
	registry *prometheus.Registry
	runners  []runner
	frames   *lldp.Source
	// release is nil for a replay, and without an API server.
	release *released
}

// wire builds what the flags select. It fails on an invalid configuration or machine file.
// The sources are in the order of their precedence.
func wire(o *options, log *slog.Logger) (*parts, error) {
	p := &parts{registry: program.NewRegistry(o.version)}
	configs, err := config.NewWatcher(o.Config, config.Uncompiled{}, log)
	if err != nil {
		return nil, err
	}
	wo := worker.Options{
		NodeName: o.NodeName, Configs: configs, Interval: o.Interval,
		Changed: notify.New(), Metrics: worker.NewMetrics(p.registry), Log: log,
	}
	if !o.dryRun {
		client, err := kube.NewClient(o.Kubeconfig, "heddle-topo-worker/"+o.version)
		if err != nil {
			return nil, err
		}
		wo.Publisher = worker.NewPublisher(client, o.NodeName)
		if !o.IsReplay() {
			p.release = &released{nodesync.NewWatch(client, o.NodeName), host.NewRelease()}
			o.Release = p.release.release
			p.runners = append(p.runners, p.release.node, p.release)
		}
	}
	o.LinkCounters = gpu.NewLinkCounters()
	wo.LinkCounters = o.LinkCounters
	if p.machines, err = o.Open(log); err != nil {
		return nil, err
	}
	wo.Machines = p.machines
	p.frames = lldp.New(wo.Changed, log)
	if !o.IsReplay() {
		open := func(device string) (*ib.UMAD, error) {
			return ib.OpenUMAD(filepath.Join(o.DevRoot, "infiniband", filepath.Base(device)))
		}
		wo.Counters = rdma.NewCounters(o.SysfsRoot, max(o.countersInterval, time.Second))
		p.runners = append(p.runners, wo.Counters)
		if wo.Switches, err = nvswitch.Open(filepath.Join(o.DevRoot, "kmsg")); err != nil {
			log.Info("no SXids of NVSwitches are read", "err", err)
		}
		wo.Sources = append(wo.Sources, ib.New(open, o.mkeySecret, wo.Changed), p.frames)
	}
	manager := clustermanager.New(clustermanager.Options{
		Secrets: o.clusterManagerSecret, UserAgent: "heddle-topo-worker/" + o.version, Changed: wo.Changed, Log: log,
	})
	p.registry.MustRegister(managerAge(manager))
	wo.Sources = append(wo.Sources, static.New(log), manager, worker.NodeLabels{})
	p.worker = worker.New(wo)
	p.runners = append(p.runners, configs, p.machines, manager)
	return p, nil
}

// managerAge returns a metric that is -1 before the first answer.
func managerAge(s *clustermanager.Source) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "heddle", Subsystem: "topology", Name: "cluster_manager_age_seconds",
		Help: "Age of the cluster manager's last good answer; -1 before the first.",
	}, func() float64 {
		age, ok := s.Age()
		if !ok {
			return -1
		}
		return age.Seconds()
	})
}

// Run implements [program.Daemon].
func (o *options) Run(ctx context.Context, log *slog.Logger, stdout io.Writer) error {
	if o.dryRun {
		return once(ctx, o, log, stdout)
	}
	return serve(ctx, o, log)
}

func serve(ctx context.Context, o *options, log *slog.Logger) error {
	p, err := wire(o, log)
	if err != nil {
		return err
	}
	defer p.frames.Close()
	p.registry.MustRegister(program.ConfigValid(Name, p.worker.Configs))
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range append(p.runners, p.worker) {
		group.Go(func() error { return r.Run(ctx) })
	}
	group.Go(func() error {
		return program.Serve(ctx, log, o.metricsAddress, p.registry, p.worker.Alive, p.worker.Metrics.Ready, nil)
	})
	log.InfoContext(ctx, "started", "version", o.version, "node", o.NodeName, "machine", o.Machine)
	return group.Wait()
}

// patience bounds how long --dry-run waits for sources: longer than the time between two
// LLDP frames.
const patience = 40 * time.Second

// once implements --dry-run: passes until every source has answered.
func once(ctx context.Context, o *options, log *slog.Logger, stdout io.Writer) error {
	p, err := wire(o, log)
	if err != nil {
		return err
	}
	defer p.frames.Close()
	if p.machines.Scan(ctx) == nil {
		return errors.New("the machine cannot be read")
	}
	ctx, cancel := context.WithCancel(ctx)
	group, running := errgroup.WithContext(ctx)
	for _, r := range p.runners {
		group.Go(func() error { return r.Run(running) })
	}
	err = p.converge(running, o, stdout)
	cancel()
	return errors.Join(err, group.Wait())
}

// converge runs passes until no source is pending, and prints the last one.
func (p *parts) converge(ctx context.Context, o *options, stdout io.Writer) error {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	poll := time.NewTicker(time.Second)
	defer poll.Stop()
	section := p.worker.Configs.Current().Resolve(o.NodeName, nil)
	spec := p.worker.Pass(ctx, &section)
	for late := false; p.worker.Pending() && !late; spec = p.worker.Pass(ctx, &section) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			late = true
		case <-poll.C:
		}
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(&v1alpha1.NodeTopology{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: o.NodeName}, Spec: spec,
	})
}

// released follows the Node's request to release its GPUs' driver: until it ends, no scan opens
// a session with the driver.
type released struct {
	node    *nodesync.Watch
	release *host.Release
}

// Run implements [runner].
func (r *released) Run(ctx context.Context) error {
	for {
		if node := r.node.Node(); node != nil {
			r.release.Set(program.Released(node.Annotations))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.node.Changed():
		}
	}
}
