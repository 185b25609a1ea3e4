// Package feature is the loop of heddle-feature-discovery: whenever the
// machine, the configuration or the Node changes, it computes the labels and
// taints and passes them to a sink.
//
// It reads no hardware (discovery/host), decides no label (discovery/labels)
// and asks no API server (discovery/nodesync); it calls the three in order and
// reports errors.
package feature

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// Machines is where machines come from: discovery/host or discovery/replay.
type Machines interface {
	// Machine is the newest machine, nil before the first.
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Sink takes what the Node should carry.
type Sink interface {
	// Put makes it so. It must be cheap when nothing changed.
	Put(ctx context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error)
	// Warn reports to operators that something became wrong.
	Warn(ctx context.Context, reason, message string) error
}

// Options configures a Daemon.
type Options struct {
	// NodeName chooses the configuration's overrides.
	NodeName string
	Machines Machines
	Configs  *config.Watcher
	// Node has the newest version of the Node; nil where no API server is asked.
	Node *nodesync.Watch
	Sink Sink
	// Vendors are those whose GPUs are known.
	Vendors gpu.Vendors
	// Interval is the longest time between two rounds.
	Interval time.Duration
	Metrics  *Metrics
	Log      *slog.Logger
}

// Alive returns what is wrong if the loop hangs.
func (o *Options) Alive() string { return o.Metrics.alive(o.Interval) }

// Daemon is the loop.
type Daemon struct {
	Options

	// warned has the last message of each reason: an Event is not repeated while
	// nothing changed.
	warned map[string]string
	// last is what the previous round computed, for the log.
	last labels.Result
}

// New returns a Daemon; Run starts it.
func New(o Options) *Daemon {
	return &Daemon{Options: o, warned: map[string]string{}}
}

// Run works until ctx ends and returns nil. What fails is retried with backoff,
// and shows in the log, in metrics and in /readyz.
func (d *Daemon) Run(ctx context.Context) error {
	ticker := time.NewTicker(d.Interval)
	defer ticker.Stop()
	fresh := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 7, Cap: time.Minute}
	backoff := fresh
	for {
		var retry <-chan time.Time
		switch err := d.Round(ctx); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNotYet):
			d.Log.DebugContext(ctx, "waiting", "for", err)
		case err != nil:
			delay := backoff.Step()
			d.Log.ErrorContext(ctx, "labels not written, will retry", "err", err, "retry_in", delay)
			retry = time.After(delay)
		default:
			backoff = fresh
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.Machines.Changed():
		case <-d.Configs.Changed():
		case <-d.nodeChanged():
		case <-ticker.C:
		case <-retry:
		}
	}
}

// errNotYet means that a source has no value yet.
var errNotYet = errors.New("not yet")

// Round reads every source once and puts the outcome into the sink.
func (d *Daemon) Round(ctx context.Context) error {
	d.Metrics.beat()
	m := d.Machines.Machine()
	if m == nil {
		return fmt.Errorf("%w: no scan of the machine is finished", errNotYet)
	}
	var node *corev1.Node
	var nodeLabels map[string]string
	if d.Node != nil {
		if node = d.Node.Node(); node == nil {
			return fmt.Errorf("%w: the API server has not shown Node %s", errNotYet, d.NodeName)
		}
		nodeLabels = node.Labels
	}
	d.reportConfig(ctx)
	resolved := d.Configs.Current().Resolve(d.NodeName, nodeLabels)
	want := labels.Compute(m, &resolved, d.Vendors)
	d.reportChange(ctx, want)

	start := time.Now()
	result, err := d.Sink.Put(ctx, node, nodesync.Desired{
		Labels: want.Labels, Taints: taints(want.Taints), Force: resolved.LabelConflict == config.Force,
	})
	d.Metrics.round(m, want, result, err, time.Since(start))
	if d.Node != nil && result.Node != nil {
		d.Node.Keep(result.Node)
	}
	d.reportConflicts(ctx, result.Conflicts)
	if err != nil {
		return err
	}
	d.Metrics.ready()
	return nil
}

func (d *Daemon) nodeChanged() <-chan struct{} {
	if d.Node == nil {
		return nil
	}
	return d.Node.Changed()
}

// taints translates to the API's type.
func taints(in []labels.Taint) []corev1.Taint {
	out := make([]corev1.Taint, 0, len(in))
	for _, t := range in {
		out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	return out
}

// reportConfig reports once what is wrong with a new configuration, and once
// that it is valid again.
func (d *Daemon) reportConfig(ctx context.Context) {
	err := d.Configs.Err()
	d.Metrics.config(err == nil)
	message := ""
	if err != nil {
		message = "keeping the last good configuration: " + err.Error()
	}
	d.warnOnce(ctx, "InvalidConfiguration", message)
}

func (d *Daemon) reportConflicts(ctx context.Context, conflicts []nodesync.Conflict) {
	lines := make([]string, 0, len(conflicts))
	for _, c := range conflicts {
		lines = append(lines, c.String())
	}
	d.warnOnce(ctx, "LabelConflict", strings.Join(lines, "\n"))
}

// warnOnce sends an Event when message differs from the last one of its
// reason. An empty message clears it.
func (d *Daemon) warnOnce(ctx context.Context, reason, message string) {
	if d.warned[reason] == message {
		return
	}
	d.warned[reason] = message
	if message == "" {
		d.Log.InfoContext(ctx, "resolved", "reason", reason)
		return
	}
	d.Log.WarnContext(ctx, "needs attention", "reason", reason, "message", message)
	if err := d.Sink.Warn(ctx, reason, message); err != nil {
		d.Log.ErrorContext(ctx, "event not recorded", "err", err)
	}
}

// reportChange logs labels and problems when they change, sorted.
func (d *Daemon) reportChange(ctx context.Context, want labels.Result) {
	var set, dropped []string
	for _, key := range slices.Sorted(maps.Keys(want.Labels)) {
		if value := want.Labels[key]; d.last.Labels[key] != value {
			set = append(set, key+"="+value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.last.Labels)) {
		if _, keep := want.Labels[key]; !keep {
			dropped = append(dropped, key)
		}
	}
	if len(set)+len(dropped) > 0 {
		d.Log.InfoContext(ctx, "labels changed", "set", set, "dropped", dropped)
	}
	for _, p := range want.Problems {
		if !slices.Contains(d.last.Problems, p) {
			d.Log.WarnContext(ctx, "label left out", "key", p.Key, "reason", p.Reason)
		}
	}
	d.last = want
}
