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
	"github.com/heddle-dev/heddle/topo/worker/cable"
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
	// Sources are asked in every pass. The first that knows is believed.
	Sources []cable.Source
	// Walker finds uplinks; nil finds none.
	Walker Walker
	Store  Store
	// Interval is the longest time between two passes.
	Interval time.Duration
	Metrics  *Metrics
	Log      *slog.Logger
}

// Alive says what is wrong if the loop no longer turns.
func (o *Options) Alive() string { return o.Metrics.alive(o.Interval) }

// lookTime bounds the sources of one pass together.
const lookTime = 5 * time.Second

// requestTime bounds one request to the API server.
const requestTime = 20 * time.Second

// Worker is the loop.
type Worker struct {
	Options
	wake notify.Signal

	// memory is what is remembered between passes; before the first it is
	// what was published.
	memory  v1alpha1.NodeTopologySpec
	waiting bool
	passed  time.Time
	walks   walks
	state   published
	labels  map[string]string
	// labelsAt is when labels were read.
	labelsAt time.Time
}

// New returns a Worker; Run starts it.
func New(o Options) *Worker {
	return &Worker{Options: o, wake: notify.New(), walks: newWalks(o.Walker)}
}

// Wake asks for a pass now. It never blocks; sources call it.
func (w *Worker) Wake() {
	w.wake.Notify()
}

// settle is how long changes are gathered: the switches of a node that starts
// are heard one after the other, and each would be a write.
const settle = 500 * time.Millisecond

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
		case <-w.wake:
			if !w.gather(ctx) {
				return nil
			}
		case outcome := <-w.walks.done:
			w.walks.keep(outcome)
		case <-w.state.beatTimer():
		case <-ticker.C:
		case <-retry:
		}
	}
}

// gather waits until a burst is over, or ctx ends.
func (w *Worker) gather(ctx context.Context) bool {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-w.wake:
	default:
	}
	return true
}

// errNotYet means that a source has nothing to say yet.
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
	in.ports, in.omitted = cable.Ports(m, w.memory.Rails)
	looking, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	q := cable.Question{Node: w.NodeName, Ports: in.ports, Topology: c.Topology}
	w.waiting = false
	for _, s := range w.Sources {
		r := s.Look(looking, q)
		in.answers = append(in.answers, answer{s.Kind(), r})
		w.waiting = w.waiting || r.PathDoubt == cable.Waiting
		for _, d := range r.Doubts {
			w.waiting = w.waiting || d == cable.Waiting
		}
	}
	w.walks.collect()
	in.uplinks, in.skipped = w.walks.uplinks()
	spec := merge(in)
	w.walks.start(ctx, in.ports, spec.Rails)
	if ctx.Err() == nil {
		w.memory, w.passed = remember(&w.memory, &spec), time.Now()
	}
	w.Metrics.pass(&spec, time.Since(began))
	return spec
}

// Waiting tells whether a source of the last pass may soon know more.
func (w *Worker) Waiting() bool { return w.waiting }
