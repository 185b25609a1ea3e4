package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/notify"
)

// Machines is where machines come from: discovery/host or discovery/replay.
type Machines interface {
	// Machine is the newest machine, nil before the first.
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Configs is where the configuration comes from.
type Configs interface {
	Current() *config.Config
	Changed() <-chan struct{}
}

// Store is where the NodeTopology is: see [Publisher].
type Store interface {
	Node(ctx context.Context) (*metav1.ObjectMeta, error)
	Load(ctx context.Context) (*v1alpha1.NodeTopology, error)
	Apply(ctx context.Context, owner types.UID, spec *v1alpha1.NodeTopologySpec) (*v1alpha1.NodeTopology, error)
	Beat(ctx context.Context, at time.Time) (*v1alpha1.NodeTopology, error)
}

// Options configures a Worker.
type Options struct {
	NodeName string
	Machines Machines
	Configs  Configs
	// Sources are asked in every pass. The first that knows a link counts.
	Sources []Source
	// Uplinks discovers the uplinks of leaves; nil for none.
	Uplinks UplinkSource
	Store   Store
	// Interval is the longest time between two passes.
	Interval time.Duration
	Metrics  *Metrics
	Log      *slog.Logger
}

// Alive is what is wrong if the loop no longer runs, else "".
func (o *Options) Alive() string { return o.Metrics.alive(o.Interval) }

// passTime bounds the sources of one pass together.
const passTime = 5 * time.Second

// requestTime bounds one request to the API server.
const requestTime = 20 * time.Second

// Worker is the loop.
type Worker struct {
	Options
	trigger notify.Signal

	// memory is what is remembered between passes; before the first it is
	// what was published.
	memory  v1alpha1.NodeTopologySpec
	pending bool
	passed  time.Time
	uplinks uplinks
	state   published
	labels  map[string]string
	// labelsAt is when labels were read.
	labelsAt time.Time
}

// New returns a Worker; Run starts it.
func New(o Options) *Worker {
	return &Worker{Options: o, trigger: notify.New(), uplinks: newUplinks(o.Uplinks)}
}

// Trigger asks for a pass now. It never blocks; sources call it.
func (w *Worker) Trigger() {
	w.trigger.Notify()
}

// debounce is how long changes are gathered: the switches of a node that starts
// answer one after the other, and each would be a write.
const debounce = 500 * time.Millisecond

// Run works until ctx ends and returns nil. What fails is tried again, ever
// more slowly, and shows in the log, in metrics and in /readyz.
func (w *Worker) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.Interval)
	defer ticker.Stop()
	fresh := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 7, Cap: time.Minute}
	backoff := fresh
	for {
		var retry <-chan time.Time
		switch err := w.Round(ctx); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNotYet):
			w.Log.DebugContext(ctx, "waiting", "for", err)
		case err != nil:
			delay := backoff.Step()
			w.Log.ErrorContext(ctx, "topology not published, will retry", "err", err, "retry_in", delay)
			retry = time.After(delay)
		default:
			backoff = fresh
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.Machines.Changed():
		case <-w.Configs.Changed():
		case <-w.trigger:
			if !w.gather(ctx) {
				return nil
			}
		case outcome := <-w.uplinks.done:
			w.uplinks.keep(outcome)
		case <-w.state.beatTimer():
		case <-ticker.C:
		case <-retry:
		}
	}
}

// gather waits until a burst is over, or ctx ends.
func (w *Worker) gather(ctx context.Context) bool {
	timer := time.NewTimer(debounce)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-w.trigger:
	default:
	}
	return true
}

// errNotYet means that the machine was not read yet.
var errNotYet = errors.New("not yet")

// Round is one pass and what it takes to publish it.
func (w *Worker) Round(ctx context.Context) error {
	w.Metrics.beat()
	if w.Machines.Machine() == nil {
		return fmt.Errorf("%w: no scan of the machine is finished", errNotYet)
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
	return w.publish(ctx, &spec)
}

// resolve is the node's configuration; the Node's labels are asked for only if
// they matter.
func (w *Worker) resolve(ctx context.Context) (*config.NodeConfig, error) {
	c := w.Configs.Current()
	if c.NeedsLabels(w.NodeName) && (w.labels == nil || time.Since(w.labelsAt) > labelsEvery) {
		ctx, cancel := context.WithTimeout(ctx, requestTime)
		defer cancel()
		node, err := w.Store.Node(ctx)
		if err != nil && w.labels == nil {
			return nil, err
		}
		if err == nil {
			w.labels, w.labelsAt = node.Labels, time.Now()
		}
	}
	resolved := c.Resolve(w.NodeName, w.labels)
	return &resolved, nil
}

// labelsEvery is how old the Node's labels may be that choose the
// configuration.
const labelsEvery = 5 * time.Minute

// Pass asks every source once and merges their answers with what is
// remembered. It writes nothing.
func (w *Worker) Pass(ctx context.Context, c *config.NodeConfig) v1alpha1.NodeTopologySpec {
	began := time.Now()
	m := c.WithRoles(w.Machines.Machine())
	in := input{machine: m, topology: &c.Topology, before: &w.memory, now: began}
	in.ports, in.omitted = Ports(m, w.memory.Rails)
	passing, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	q := Query{Node: w.NodeName, Ports: in.ports, Topology: c.Topology}
	w.pending = false
	for _, s := range w.Sources {
		r := s.Discover(passing, q)
		in.answers = append(in.answers, answer{s.Kind(), r})
		w.pending = w.pending || r.NoPath == Pending
		for _, why := range r.NoLink {
			w.pending = w.pending || why == Pending
		}
	}
	w.uplinks.collect()
	in.uplinks, in.skipped = w.uplinks.known()
	spec := merge(in)
	w.uplinks.start(ctx, in.ports, spec.Rails)
	if ctx.Err() == nil {
		w.memory, w.passed = remember(&w.memory, &spec), time.Now()
	}
	w.Metrics.pass(&spec, time.Since(began))
	return spec
}

// Pending reports whether a source of the last pass may soon know more.
func (w *Worker) Pending() bool { return w.pending }
