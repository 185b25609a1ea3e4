package featurediscovery

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/internal/notify"
)

// daemon computes the labels and taints whenever the machine, the configuration or the Node
// changes, and passes them to a sink.
type daemon struct {
	// nodeName chooses the configuration's overrides.
	nodeName string
	machines program.Machine
	configs  *config.Watcher
	// node has the newest version of the Node; nil without an API server.
	node *nodesync.Watch
	// release tracks whether the Node asks to release the GPUs' driver; nil if unknown.
	release *host.Release
	sink    sink
	// cleanup removes heddle's labels and taints.
	cleanup bool
	vendors gpu.Vendors
	// interval is the longest time between two rounds.
	interval time.Duration
	metrics  *metrics
	log      *slog.Logger

	// booted is when the machine booted, absentSince when a GPU driver was found absent;
	// zero if unknown.
	booted, absentSince time.Time
	// warned has the last message of each reason, so that Events are not repeated.
	warned map[string]string
	// last is the result of the previous round, for the log.
	last labels.Result
}

// run works until ctx ends and returns nil. Failed rounds are retried with backoff and
// show in the log, in metrics and in /readyz.
func (d *daemon) run(ctx context.Context) error {
	ticker := time.NewTicker(d.interval)
	defer ticker.Stop()
	var retry notify.Retry
	for ctx.Err() == nil {
		failed := retry.After(ctx, d.log, d.round(ctx, d.machines.Machine()))
		select {
		case <-ctx.Done():
		case <-d.machines.Changed():
		case <-d.configs.Changed():
		case <-d.nodeChanged():
		case <-ticker.C:
		case <-failed:
		}
	}
	return nil
}

// round computes the desired labels and taints once, and passes them to the sink.
func (d *daemon) round(ctx context.Context, m *machine.Machine) error {
	d.metrics.lastBeat.Store(new(time.Now()))
	var node *corev1.Node
	var nodeLabels map[string]string
	if d.node != nil {
		if node = d.node.Node(); node == nil {
			return fmt.Errorf("%w: Node %s has not been read", notify.ErrNotYet, d.nodeName)
		}
		nodeLabels = node.Labels
		d.release.Set(program.Released(node.Annotations))
	}
	if m == nil {
		return fmt.Errorf("%w: the machine has not been scanned", notify.ErrNotYet)
	}
	d.reportConfig(ctx)
	resolved := d.configs.Current().Resolve(d.nodeName, nodeLabels).For(m)
	want := labels.Compute(m, &resolved, d.vendors)
	want, absentSince := d.withoutDriver(ctx, node, m, &resolved, &want)
	d.reportChange(ctx, want)

	start := time.Now()
	desired := nodesync.Desired{
		Labels: want.Labels, Taints: want.Taints, DriverAbsentSince: absentSince,
		Force: resolved.LabelConflict == config.Force,
	}
	if d.cleanup {
		desired = nodesync.Desired{}
	}
	result, err := d.sink.Sync(ctx, node, desired)
	d.metrics.round(m, want, result, err, time.Since(start))
	if d.node != nil && result.Node != nil {
		d.node.Keep(result.Node)
	}
	d.reportConflicts(ctx, result.Conflicts)
	if err != nil {
		return err
	}
	d.metrics.isReady.Store(true)
	return nil
}

func (d *daemon) nodeChanged() <-chan struct{} {
	if d.node == nil {
		return nil
	}
	return d.node.Changed()
}

// alive returns an error message unless a round began within the last three intervals.
func (d *daemon) alive() string {
	if last := d.metrics.lastBeat.Load(); last != nil && time.Since(*last) < 3*d.interval {
		return ""
	}
	return "no round for three intervals"
}

// reportConfig reports changes between a valid and an invalid configuration.
func (d *daemon) reportConfig(ctx context.Context) {
	err := d.configs.Err()
	message := ""
	if err != nil {
		message = "keeping the last good configuration: " + err.Error()
	}
	d.warnOnce(ctx, wellknown.EventInvalidConfiguration, message)
}

func (d *daemon) reportConflicts(ctx context.Context, conflicts []nodesync.Conflict) {
	lines := make([]string, 0, len(conflicts))
	for _, c := range conflicts {
		lines = append(lines, c.String())
	}
	d.warnOnce(ctx, wellknown.EventLabelConflict, strings.Join(lines, "\n"))
}

// warnOnce sends an Event if message differs from the last one with this reason. An empty
// message clears it.
func (d *daemon) warnOnce(ctx context.Context, reason, message string) {
	if d.warned[reason] == message {
		return
	}
	d.warned[reason] = message
	if message == "" {
		d.log.InfoContext(ctx, "resolved", "reason", reason)
		return
	}
	d.log.WarnContext(ctx, "needs attention", "reason", reason, "message", message)
	if err := d.sink.Warn(ctx, reason, message); err != nil {
		d.log.ErrorContext(ctx, "event not recorded", "err", err)
	}
}

// reportChange logs changed labels and problems, sorted.
func (d *daemon) reportChange(ctx context.Context, want labels.Result) {
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
		d.log.InfoContext(ctx, "labels changed", "set", set, "dropped", dropped)
	}
	for _, p := range want.Problems {
		if !slices.Contains(d.last.Problems, p) {
			d.log.WarnContext(ctx, "label omitted", "key", p.Key, "reason", p.Reason)
		}
	}
	d.last = want
}
