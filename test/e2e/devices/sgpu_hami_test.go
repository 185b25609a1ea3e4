//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
)

// hamiConfig is a node for HAMi as docs/hami.md has it.
const hamiConfig = sharedGPUs + "sgpu: {unscheduled: reject, refusedFor: 0s, hami: {enabled: true}}\n"

// TestHAMiSide drives the node by exactly what HAMi's scheduler writes, version
// by version: the node lock, the pod's annotations, the Binding.
func TestHAMiSide(t *testing.T) { //nolint:tparallel // Its parts share a rig.
	r := sgpu(t)
	r.configure(t, hamiConfig)
	locks := r.locks(t)
	r.waitHealthy(t, 8)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *rig, *lockLog)
	}{
		{"cards", hamiNode},
		{"documented example", hamiExample},
		{"versions", hamiVersions},
		{"one after another", hamiRow},
		{"policy", hamiPolicy},
		{"forged", hamiForged},
		{"others", hamiOthers},
		{"locks of others", hamiLocks},
		{"closed", hamiClosed},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, r, locks) })
	}
}

// hamiNode: the Node's annotation, whole.
func hamiNode(t *testing.T, r *rig, _ *lockLog) {
	m := r.machine(t)
	want := map[string]allocation.HAMiGPU{}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		want[g.UUID] = allocation.HAMiGPU{
			UUID: g.UUID, BDF: g.PCI, Model: g.Product, TotalDevCount: 16, TotalCompute: 100, TotalVRam: 81559,
			AvailableDevCount: 16, AvailableCompute: 100, AvailableVRam: 81559, NUMA: *m.Function(g.PCI).NUMA,
			Healthy: true, LinkZone: 1,
		}
	}
	// What is left is written at most every 30 s, and earlier tests took some.
	eventually(t, waitStart, func() string { return cmp.Diff(want, r.hamiGPUs(t)) })
}

// hamiExample: the documented pod gets the card that HAMi chose.
func hamiExample(t *testing.T, r *rig, locks *lockLog) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "examples", "sgpu-pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p corev1.Pod
	if err := yaml.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	if p.Name != "sample-pod" || p.Spec.SchedulerName != hamiScheduler {
		t.Fatalf("the example is pod %s of scheduler %s", p.Name, p.Spec.SchedulerName)
	}
	// Its image is not at hand, and does not report what it sees.
	ours := r.pod(p.Name, box{})
	c := &p.Spec.Containers[0]
	c.Image, c.Command, c.Args, c.VolumeMounts = reportImage, nil, nil, ours.Spec.Containers[0].VolumeMounts
	p.Namespace, p.Spec.Volumes, p.Spec.TerminationGracePeriodSeconds = namespace, ours.Spec.Volumes, new(int64(1))
	h, g := r.hami(t, "2.10"), golden(t, "2.10", "one container")
	r.create(t, &p)
	if err := h.filter(t.Context(), p.Name, g, nil); err != nil {
		t.Fatal(err)
	}
	value, err := h.lock(t.Context(), p.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.bind(t.Context(), p.Name); err != nil {
		t.Fatal(err)
	}
	bound := time.Now()
	t.Logf("the lock was gone %d ms after the binding", locks.waitGone(t, value).Sub(bound).Milliseconds())
	r.waitReady(t, p.Name, waitStart)
	r.hasShares(t, p.Name, c.Name, 0, allocation.Share{UUID: r.gpuAt(t, firstGPU), VCore: 60, MemoryMiB: 4096})
	if got := r.waitBound(t, p.Name, c.Name); got.By != allocation.ByHAMi {
		t.Errorf("the annotation has %+v", got)
	}
	r.waitPhase(t, p.Name, "success")
}

// hamiVersions: each writes pods its own way.
func hamiVersions(t *testing.T, r *rig, locks *lockLog) {
	for i, tt := range []struct{ version, pod string }{
		{"2.6", "one container"},
		{"2.7", "two cards"},
		{"2.8", "the first container asks for none"},
		{"2.9", "an init container has a copy of the first container's"},
		{"2.10", "an init container that needs more has its own"},
		{"2.10", "neither vcore nor vmemory"},
	} {
		t.Run(tt.version+" "+tt.pod, func(t *testing.T) {
			h, g := r.hami(t, tt.version), golden(t, tt.version, tt.pod)
			pod := fmt.Sprintf("hami-%d", i)
			gone := h.schedule(t, pod, g, locks)
			t.Logf("the lock was gone %d ms after the binding", gone.Milliseconds())
			if gone > 2*time.Second {
				t.Errorf("the lock was held for %s", gone)
			}
			r.waitReady(t, pod, waitStart)
			for _, b := range slices.Concat(g.Init, g.Containers) {
				want, reason := h.wanted(g, b.Name)
				if reason != "" {
					t.Fatalf("container %s is to be refused: %s", b.Name, reason)
				}
				r.hasShares(t, pod, b.Name, 0, want...)
			}
			r.waitPhase(t, pod, "success")
			r.count(t)
		})
	}
	t.Run("2.6 init containers are not listed", func(t *testing.T) {
		h, g := r.hami(t, "2.6"), golden(t, "2.6", "init containers are not listed")
		h.schedule(t, "unlisted", g, locks)
		r.waitEvent(t, "unlisted", "SGPURefused", "no scheduler chose a GPU, and sgpu.unscheduled is reject", 20*time.Second)
		r.waitPhase(t, "unlisted", "failed")
		r.configure(t, strings.Replace(hamiConfig, "reject", "place", 1))
		r.waitReady(t, "unlisted", waitStart)
		r.configure(t, hamiConfig)
		r.hasShares(t, "unlisted", "prepare", 0, slice(10, 1))
		for _, b := range g.Containers {
			r.hasShares(t, "unlisted", b.Name, 0, first(h.wanted(g, b.Name))...)
		}
	})
}

// hamiRow: HAMi binds a pod when the last one's lock is gone.
func hamiRow(t *testing.T, r *rig, locks *lockLog) {
	const n = 12
	h, g := r.hami(t, "2.10"), golden(t, "2.10", "one container")
	g.Containers[0].VCore, g.Containers[0].MemoryMiB = 5, 1024
	g.Annotations[apinames.HAMiAllocation] = `[[{"uuid":"` + firstOfGolden + `","compute":5,"vRam":1024}]]`
	var all []time.Duration
	begin := time.Now()
	for i := range n {
		all = append(all, h.schedule(t, fmt.Sprintf("row-%02d", i), g, locks))
	}
	took := time.Since(begin)
	slices.Sort(all)
	t.Logf("%d pods bound one after another in %.2f s, %.1f a second; lock gone after the binding: median %d ms, longest %d ms",
		n, took.Seconds(), n/took.Seconds(), all[n/2].Milliseconds(), all[n-1].Milliseconds())
	if all[n/2] > 500*time.Millisecond {
		t.Errorf("half of the locks were held for %s and longer", all[n/2])
	}
	for i := range n {
		r.waitReady(t, fmt.Sprintf("row-%02d", i), waitStart)
	}
	if got := r.count(t)[r.gpuAt(t, firstGPU)]; got.VCore != 60 || got.Slots != n {
		t.Errorf("taken of the card: %+v", got)
	}
}

// hamiPolicy: HAMi waits for a card's policy to be what it decided, and for it
// to be none when the card is empty. (Of a consumer with vcore 100 it expects none.)
func hamiPolicy(t *testing.T, r *rig, locks *lockLog) {
	h, g := r.hami(t, "2.8"), golden(t, "2.8", "one container")
	h.schedule(t, "policy", g, locks)
	r.waitReady(t, "policy", waitStart)
	wait := func(want string) time.Duration {
		return eventually(t, waitStart, func() string {
			got := map[string]string{}
			for uuid, c := range r.hamiGPUs(t) {
				if c.QoSPolicy != "" {
					got[uuid] = c.QoSPolicy
				}
			}
			expected := map[string]string{}
			if want != "" {
				expected[r.gpuAt(t, firstGPU)] = want
			}
			return cmp.Diff(expected, got)
		})
	}
	wait("fixed-share")
	r.remove(t, "policy")
	t.Logf("the policy was cleared %s after its only pod was gone", wait("").Round(time.Millisecond))
	// No pod follows, so the kubelet's checkpoint still names the last one's devices.
	t.Logf("its checkpoint entry and its CDI spec went after %s more", eventually(t, 30*time.Second, func() string {
		specs, _ := filepath.Glob(r.NodeDir("/run/cdi") + "/heddle-sgpu-*")
		entries, _ := filepath.Glob(filepath.Join(r.dir, "state", "records", "*.json"))
		if len(specs)+len(entries) > 0 {
			return fmt.Sprintf("left are %q and %q", specs, entries)
		}
		return ""
	}).Round(time.Millisecond))
}
