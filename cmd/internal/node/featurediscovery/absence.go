package featurediscovery

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

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
func booted(procRoot string) time.Time {
	first, _, _ := strings.Cut(sysfs.New(procRoot).Text("uptime"), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(seconds * float64(time.Second)))
}
