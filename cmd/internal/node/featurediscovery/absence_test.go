package featurediscovery

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// carry has the API server show the Node as the last round wrote it.
func (b *bed) carry(t *testing.T) nodesync.Desired {
	t.Helper()
	d := b.sink.puts[len(b.sink.puts)-1]
	owned := map[string]any{}
	for key := range d.Labels {
		owned["f:"+key] = struct{}{}
	}
	fields, _ := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:labels": owned}})
	var ids []string
	for _, taint := range d.Taints {
		ids = append(ids, taint.Key+":"+string(taint.Effect))
	}
	record, _ := json.Marshal(ids)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: maps.Clone(d.Labels), Annotations: map[string]string{wellknown.OwnedTaints: string(record)},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: wellknown.FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(string(fields)),
		}},
	}, Spec: corev1.NodeSpec{Taints: d.Taints}}
	if d.DriverAbsentSince != "" {
		node.Annotations[wellknown.DriverAbsentSince] = d.DriverAbsentSince
	}
	if err := b.node.Update(node); err != nil {
		t.Fatal(err)
	}
	return d
}

// restart is another process on the same Node.
func (b *bed) restart(t *testing.T, text map[string]string) *bed {
	t.Helper()
	next := newBed(t, text)
	next.vendors, next.booted = b.vendors, b.booted
	next.sink.puts = b.sink.puts
	next.carry(t)
	return next
}

func (b *bed) scan(t *testing.T, m *machine.Machine) nodesync.Desired {
	t.Helper()
	if err := b.round(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return b.carry(t)
}

func driven(t *testing.T) (with, without *machine.Machine) {
	t.Helper()
	with, err := host.LoadDump("../../../../test/machines/dgx-h100.json")
	if err != nil {
		t.Fatal(err)
	}
	absent := *with
	absent.GPUs, absent.Driver = nil, machine.Driver{}
	absent.Probes = []machine.Probe{{Name: "nvml", State: machine.ProbeAbsent, Reason: "libnvidia-ml.so.1 is not installed"}}
	return with, &absent
}

// A machine that starts has no driver for some minutes. The Node's labels and
// taints stay, also when the daemon restarts meanwhile, but not for ever.
func TestLabelsAndTaintsStayWhileTheDriverIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with, without := driven(t)
		text := map[string]string{"cluster-config": `
preset: scheme
usage: training
labels:
- {key: example.com/gpus, value: "string(gpu.count)"}
`}
		b := newBed(t, text)
		b.vendors = host.Vendors()
		up := b.scan(t, with)
		if len(up.Labels) < 25 || len(up.Taints) != 2 || up.DriverAbsentSince != "" {
			t.Fatalf("with the driver: %d labels, taints %v, %q", len(up.Labels), up.Taints, up.DriverAbsentSince)
		}

		<-time.After(time.Hour)
		b = b.restart(t, text) // The machine started again.
		b.booted = time.Now()
		began := time.Now().UTC().Format(time.RFC3339)
		kept := up
		kept.DriverAbsentSince = began
		for range 3 {
			if diff := cmp.Diff(kept, b.scan(t, without)); diff != "" {
				t.Fatalf("without the driver (-want +got):\n%s", diff)
			}
			<-time.After(time.Minute)
		}
		if n := len(b.sink.warnings); n != 1 || !strings.Contains(b.sink.warnings[0], "GPUDriverAbsent: NVIDIA GPUs are on the PCI bus without a driver: "+
			"libnvidia-ml.so.1 is not installed; labels and taints of the GPUs are kept for 15m0s, since "+began) {
			t.Errorf("warnings: %q", b.sink.warnings)
		}

		b = b.restart(t, map[string]string{"cluster-config": text["cluster-config"] + "controlPlane: true\n"})
		got := b.scan(t, without)
		if got.Labels["heddle.dev/control-plane"] != "true" || got.Labels["nvidia.com/gpu.count"] != "8" || got.DriverAbsentSince != began {
			t.Errorf("after a restart, with another configuration: %v", got)
		}
		b = b.restart(t, text)
		<-time.After(11 * time.Minute)
		if got = b.scan(t, without); len(got.Labels) != len(up.Labels) {
			t.Errorf("after 14 minutes %d labels, want %d", len(got.Labels), len(up.Labels))
		}
		<-time.After(time.Minute)
		for range 2 {
			got = b.scan(t, without)
			if got.Labels["nvidia.com/gpu.count"] != "" || got.Labels["example.com/gpus"] != "0" || len(got.Taints) != 1 {
				t.Errorf("after 15 minutes: %v", got)
			}
			b = b.restart(t, text)
		}
		if diff := cmp.Diff(up, b.scan(t, with)); diff != "" {
			t.Errorf("with the driver again (-want +got):\n%s", diff)
		}
	})
}

// An annotation of an earlier start counts for nothing, and a Node without GPU
// labels gets none.
func TestTheTimeWithoutADriverBeginsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with, without := driven(t)
		b := newBed(t, nil)
		b.vendors = host.Vendors()
		if got := b.scan(t, without); got.DriverAbsentSince != "" || len(b.sink.warnings) > 0 {
			t.Errorf("a Node that had no GPUs: %v, %q", got, b.sink.warnings)
		}
		up := b.scan(t, with)
		b.scan(t, without) // The driver is being upgraded.
		<-time.After(time.Hour)
		b = b.restart(t, nil)
		b.booted = time.Now().Add(-time.Minute)
		if got := b.scan(t, without); len(got.Labels) != len(up.Labels) {
			t.Errorf("a minute after the start: %d labels, want %d", len(got.Labels), len(up.Labels))
		}

		gone := *without
		gone.PCI = nil
		if got := b.scan(t, &gone); got.Labels["nvidia.com/gpu.count"] != "" || got.DriverAbsentSince != "" {
			t.Errorf("GPUs that left the bus: %v", got)
		}
	})
}

// A daemon that starts under a release of the driver reads no GPU, and keeps what
// the Node carries until the release ends.
func TestLabelsAndTaintsStayUnderARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with, without := driven(t)
		b := newBed(t, map[string]string{"cluster-config": "taints: {gpuProduct: true}\n"})
		b.vendors = host.Vendors()
		before := b.scan(t, with)
		b.release = host.NewRelease()
		ask := func(until time.Time) {
			node := b.node.Node().DeepCopy()
			node.Annotations[wellknown.GPURelease] = `{"until":"` + until.UTC().Format(time.RFC3339) + `"}`
			if err := b.node.Update(node); err != nil {
				t.Fatal(err)
			}
		}
		without.Probes[0].State = machine.ProbeReleased
		ask(time.Now().Add(time.Hour))
		if diff := cmp.Diff(before, b.scan(t, without)); diff != "" {
			t.Errorf("under the release (-before +now):\n%s", diff)
		}
		ask(time.Now())
		b.scan(t, without)
		<-time.After(config.KeepWithoutDriver)
		if after := b.scan(t, without); len(after.Labels) >= len(before.Labels) {
			t.Error("after the release, labels of GPUs that are not there stay")
		}
	})
}

func TestBooted(t *testing.T) {
	dir := t.TempDir()
	if at := booted(dir, time.Now()); !at.IsZero() {
		t.Errorf("without uptime: %s", at)
	}
	if err := os.WriteFile(filepath.Join(dir, "uptime"), []byte("90.50 120.00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if up := now.Sub(booted(dir, now)); up != 90500*time.Millisecond {
		t.Errorf("up for %s", up)
	}
}
