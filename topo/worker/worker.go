// Package worker discovers where the links of its node end and reports it in the
// node's NodeTopology.
//
// It owns the pass: ask every source, merge their answers, and publish it if
// it differs from what was published. It owns the memory between passes: a
// switch that was seen stays, with less confidence, while its link is down or
// it does not answer. It groups nothing, takes part in no election and knows of no other
// node; it reads no hardware but through the packages below it, and the
// machine comes from discovery.
package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/nvswitch"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/links"
)

// Machines is the source of machines: discovery/host or discovery/replay.
type Machines interface {
	// Machine is the newest machine, nil before the first.
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Options configures a Worker.
type Options struct {
	NodeName string
	Machines Machines
	Configs  *config.Watcher
	// Sources are asked in every pass. The first that knows a link counts.
	Sources []Source
	// Changed is set by sources that know more than they reported.
	Changed notify.Signal
	// Counters are the ports' errors; nil for none.
	Counters *rdma.Counters
	// LinkCounters are the errors of the GPUs' links; nil for none.
	LinkCounters *gpu.LinkCounters
	// Switches has the errors of NVSwitches; nil for none.
	Switches *nvswitch.Log
	// Publisher is not used by Pass.
	Publisher *Publisher
	// Interval is the longest time between two passes.
	Interval time.Duration
	Metrics  *Metrics
	Log      *slog.Logger
}

// Alive returns why the loop counts as stuck, or "".
func (o *Options) Alive() string { return o.Metrics.alive(o.Interval) }

// passTime bounds the sources of one pass together.
const passTime = 5 * time.Second

// Worker is the loop.
type Worker struct {
	Options

	// memory holds the state between passes; before the first pass it is the published spec.
	memory  v1alpha1.NodeTopologySpec
	pending bool
	passed  time.Time
	state   published
	labels  map[string]string
	// labelsAt is the time when labels were read.
	labelsAt time.Time
	// links follows the readings of counters, scan is the last one.
	links *links.Tracker
	scan  rdma.CounterScan
	// far are the counters of the switches' ports in the last reading.
	far map[PortKey]*v1alpha1.Counters
}

// New returns a Worker; Run starts it.
func New(o Options) *Worker {
	o.Changed = cmp.Or(o.Changed, notify.New())
	return &Worker{Options: o}
}

// debounce is the time for which changes are gathered: the switches of a node that starts
// answer one after the other, and each would be a write.
const debounce = 500 * time.Millisecond

// Run works until ctx ends and returns nil. Failed rounds are retried with backoff and
// show in the log, in metrics and in /readyz.
func (w *Worker) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.Interval)
	defer ticker.Stop()
	var retry notify.Retry
	for ctx.Err() == nil {
		failed := retry.After(ctx, w.Log, w.Round(ctx))
		select {
		case <-ctx.Done():
		case <-w.Machines.Changed():
		case <-w.Configs.Changed():
		case <-w.Changed:
			select {
			case <-ctx.Done():
			case <-time.After(debounce):
			}
		case <-w.state.timer():
		case <-ticker.C:
		case <-failed:
		}
	}
	return nil
}

// Round makes one pass and publishes it.
func (w *Worker) Round(ctx context.Context) error {
	w.Metrics.lastBeat.Store(new(time.Now()))
	select { // What changed so far is in this pass.
	case <-w.Changed:
	default:
	}
	if w.Machines.Machine() == nil {
		return fmt.Errorf("%w: the machine has not been scanned", notify.ErrNotYet)
	}
	if err := w.load(ctx); err != nil {
		return err
	}
	topology, err := w.resolve(ctx)
	if err != nil {
		return err
	}
	spec := w.Pass(ctx, topology)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err = w.publish(ctx, &spec); err != nil {
		w.Metrics.failures.Inc()
	}
	return err
}

// resolve returns the node's configuration; the Node's labels are asked for only if
// they matter.
func (w *Worker) resolve(ctx context.Context) (*config.NodeConfig, error) {
	c := w.Configs.Current()
	resolved := c.Resolve(w.NodeName, w.labels)
	needed := c.NeedsLabels(w.NodeName) || len(resolved.Topology.PathLabels) > 0
	if needed && (w.labels == nil || time.Since(w.labelsAt) > labelsEvery) {
		if _, err := w.readNode(ctx); err != nil && w.labels == nil {
			return nil, err
		}
		resolved = c.Resolve(w.NodeName, w.labels)
	}
	return &resolved, nil
}

// labelsEvery is the maximum age of the Node labels that select the configuration.
const labelsEvery = 5 * time.Minute

// Pass asks every source once and merges their answers with the memory. It writes nothing.
func (w *Worker) Pass(ctx context.Context, c *config.NodeConfig) v1alpha1.NodeTopologySpec {
	began := time.Now()
	m := c.WithRoles(c.WithoutExcluded(w.Machines.Machine()))
	in := input{machine: m, topology: &c.Topology, before: &w.memory, now: began, counters: w.Counters.Last()}
	in.ports, in.omitted = Ports(m, w.memory.Rails)
	passing, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	q := Query{
		Node: w.NodeName, Ports: in.ports, Topology: c.Topology, Leaves: w.state.leaves, Uplinks: w.memory.Uplinks,
		Labels: w.labels, Counted: in.counters.Time,
	}
	w.pending = false
	for _, s := range w.Sources {
		r := s.Discover(passing, q)
		in.answers = append(in.answers, answer{s.Kind(), r})
		w.pending = w.pending || r.NoPath == Pending
		for _, why := range r.NoLink {
			w.pending = w.pending || why == Pending
		}
	}
	in.degraded = w.followLinks(&in)
	spec := merge(in)
	if ctx.Err() == nil {
		w.memory, w.passed = remember(&w.memory, &spec), time.Now()
	}
	w.Metrics.pass(&spec, time.Since(began))
	return spec
}

// Pending reports whether a source of the last pass may soon know more.
func (w *Worker) Pending() bool { return w.pending }
