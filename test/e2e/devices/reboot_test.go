//go:build e2e && linux

package devices

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// TestRebootKeepsLabelsAndTaints: the machine starts again, the GPUs are on its
// bus, and the driver's library comes later, as from a driver container. The real
// API server shows the Node as before until then, also when the daemon restarts
// meanwhile.
func TestRebootKeepsLabelsAndTaints(t *testing.T) {
	beside(t)
	r, n := newDriverRig(t, "reboot")
	if err := r.writeConfig("preset: scheme\nusage: training\n"); err != nil {
		t.Fatal(err)
	}
	labeler := n.labeler(t, r)
	start := func() {
		t.Helper()
		if err := labeler.stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := labeler.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	state := func() (map[string]string, string) {
		node := r.node(t)
		labels := maps.Clone(node.Labels)
		slices.SortFunc(node.Spec.Taints, func(a, b corev1.Taint) int { return strings.Compare(a.Key, b.Key) })
		return labels, fmt.Sprint(node.Annotations[wellknown.OwnedTaints], node.Spec.Taints)
	}
	if err := labeler.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitDriverLabel(t, driverBefore)
	labels, taints := state()

	if err := labeler.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	hidden := n.Root + ".hidden"
	if err := os.Rename(n.Root, hidden); err != nil {
		t.Fatal(err)
	}
	since := ""
	for range 2 {
		start()
		eventually(t, waitStart, func() string {
			now := r.node(t).Annotations[wellknown.DriverAbsentSince]
			if now == "" || since != "" && now != since {
				return fmt.Sprintf("%s is %q, want %q", wellknown.DriverAbsentSince, now, since)
			}
			since = now
			return ""
		})
		r.waitEvent(t, r.Node(), "GPUDriverAbsent", "are kept for 15m0s", waitStart)
		<-time.After(5 * time.Second) // Two scans.
		gotLabels, gotTaints := state()
		if diff := cmp.Diff(labels, gotLabels); diff != "" || gotTaints != taints {
			t.Fatalf("labels without the driver (-want +got):\n%s\ntaints %s, want %s", diff, gotTaints, taints)
		}
	}
	if err := os.Rename(hidden, n.Root); err != nil {
		t.Fatal(err)
	}
	r.waitDriverLabel(t, driverBefore)
	eventually(t, waitStart, func() string {
		gotLabels, gotTaints := state()
		if diff := cmp.Diff(labels, gotLabels); diff != "" || gotTaints != taints || r.node(t).Annotations[wellknown.DriverAbsentSince] != "" {
			return fmt.Sprintf("with the driver again (-want +got):\n%s\ntaints %s, want %s", diff, gotTaints, taints)
		}
		return ""
	})
}
