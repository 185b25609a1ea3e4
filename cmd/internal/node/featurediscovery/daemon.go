package featurediscovery

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
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
	"github.com/heddle-dev/heddle/discovery/sysfs"
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

// reportChange logs changed labels, and labels that are left out.
func (d *daemon) reportChange(ctx context.Context, want labels.Result) {
	if !maps.Equal(want.Labels, d.last.Labels) {
		d.log.InfoContext(ctx, "labels changed", "labels", want.Labels)
	}
	for _, p := range want.Problems {
		if !slices.Contains(d.last.Problems, p) {
			d.log.WarnContext(ctx, "label omitted", "key", p.Key, "reason", p.Reason)
		}
	}
	d.last = want
}

// withoutDriver keeps heddle's labels and taints of the Node while a GPU driver is absent,
// for the configured time. The Node also stores since when: since is the value of its
// annotation, which stays until the driver is back.
func (d *daemon) withoutDriver(
	ctx context.Context, node *corev1.Node, m *machine.Machine, c *config.NodeConfig, want *labels.Result,
) (kept labels.Result, since string) {
	d.metrics.kept.Set(0)
	reason, released := labels.DriverAbsent(m, d.vendors), d.release.Active()
	if node == nil || reason == "" {
		d.absentSince = time.Time{}
		d.warnOnce(ctx, wellknown.EventGPUDriverAbsent, "")
		return *want, ""
	}
	carried, taints := nodesync.Carried(node)
	kept, lost := want.Keep(c, carried, taints)
	if released {
		// Started while the driver is released, until a time that the request sets.
		d.metrics.kept.Set(1)
		return kept, ""
	}
	if d.absentSince.IsZero() {
		d.absentSince = d.recordedAbsence(node)
	}
	if d.absentSince.IsZero() && lost {
		d.absentSince = time.Now()
	}
	if d.absentSince.IsZero() {
		return *want, "" // The Node has nothing that the driver would show.
	}
	since = d.absentSince.UTC().Format(time.RFC3339)
	if time.Since(d.absentSince) >= config.KeepWithoutDriver {
		d.warnOnce(ctx, wellknown.EventGPUDriverAbsent, fmt.Sprintf(
			"%s; labels and taints of the GPUs were kept for %s since %s and are removed",
			reason, config.KeepWithoutDriver, since))
		return *want, since
	}
	d.warnOnce(ctx, wellknown.EventGPUDriverAbsent, fmt.Sprintf(
		"%s; labels and taints of the GPUs are kept for %s, since %s", reason, config.KeepWithoutDriver, since))
	d.metrics.kept.Set(1)
	return kept, since
}

// recordedAbsence returns since when an earlier process has missed the driver, or zero if none
// has since the machine booted. The result uses the monotonic clock, since the wall clock may
// be set after a boot.
func (d *daemon) recordedAbsence(node *corev1.Node) time.Time {
	at, err := time.Parse(time.RFC3339, node.Annotations[wellknown.DriverAbsentSince])
	if err != nil || at.Before(d.booted) {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(-max(0, now.Sub(at)))
}

// booted returns when the machine booted, or zero if unknown.
func booted(procRoot string, now time.Time) time.Time {
	first, _, _ := strings.Cut(sysfs.New(procRoot).Text("uptime"), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(seconds * float64(time.Second)))
}
