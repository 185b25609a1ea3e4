//go:build e2e && linux

package devices

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// TestSGPUContainers: every container of a pod has cards of its own, whatever
// kind it is, and keeps them over restarts.
func TestSGPUContainers(t *testing.T) {
	r := sgpu(t)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *rig)
	}{
		{"several containers", severalShares},
		{"sidecar", sidecarShare},
		{"beside HCAs", besideHCAs},
		{"the pod's own words", ownWords},
		{"resize", resizedShare},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, r) })
	}
}

// resizedShare: a share cannot be changed in place, since the API server takes no resize of it.
func resizedShare(t *testing.T, r *rig) {
	r.run(t, r.pod("resized", box{more: share(30, 4)}))
	for _, resize := range []string{`"nvidia.com/vcore":"40"`, `"nvidia.com/vmemory":"8"`} {
		patch := `{"spec":{"containers":[{"name":"app","resources":{"limits":{` + resize + `},"requests":{` + resize + `}}}]}}`
		out, err := r.KubectlCommand(t.Context(), "patch", "pod", "resized", "--subresource=resize", "-p", patch).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "only cpu and memory resources are mutable") {
			t.Errorf("a resize to %s is answered %s (%v)", resize, out, err)
		}
	}
	r.hasShares(t, "resized", "app", 0, slice(30, 4))
}

// besides adds containers to a pod.
func besides(p *corev1.Pod, boxes ...box) *corev1.Pod {
	for _, b := range boxes {
		p.Spec.Containers = append(p.Spec.Containers, b.container())
	}
	return p
}

// severalShares: two containers with shares, one with two cards and one with
// none; binpack puts the former onto one card. A container that ends, and one
// that is killed, comes back to its card.
func severalShares(t *testing.T, r *rig) {
	p := besides(r.pod("several", box{more: share(30, 4)}),
		box{name: "second", more: share(20, 8)}, box{name: "pair", more: shares(2, 10, 1)}, box{name: "none"})
	r.run(t, p)
	app := r.hasShares(t, "several", "app", 0, slice(30, 4))
	second := r.hasShares(t, "several", "second", 0, slice(20, 8))
	pair := r.hasShares(t, "several", "pair", 0, slice(10, 1), slice(10, 1))
	if none := r.sees(t, "several", "none"); len(none.GPUs) > 0 || none.Devices != nil {
		t.Errorf("a container that asked for nothing sees %+v", none)
	}
	if app[0].UUID != second[0].UUID || pair[0].UUID == pair[1].UUID {
		t.Errorf("shares are %v, %v and %v: the first two belong on one card, the pair on two", app, second, pair)
	}
	r.count(t)

	r.stopContainer(t, "several", "app")
	running := r.waitRestart(t, "several", "app", 1)
	r.hasShares(t, "several", "app", 0, app...)
	r.killContainer(t, status(running, "pair").ContainerID)
	r.waitRestart(t, "several", "pair", 1)
	r.hasShares(t, "several", "pair", 0, pair...)
	r.hasShares(t, "several", "second", 0, second...)
	if n := len(r.bindings(t)["several/app"]); n != 1 {
		t.Errorf("the container has %d records of shares after its restart", n)
	}
	r.count(t)
}

// sidecarShare: it runs beside the app container, so both count.
func sidecarShare(t *testing.T, r *rig) {
	r.run(t, r.pod("beside", box{more: share(60, 4)},
		box{name: "side", more: share(50, 4), sidecar: true}, box{name: "before", more: share(50, 2), args: []string{"once"}}))
	side := r.hasShares(t, "beside", "side", 0, slice(50, 4))
	before := r.hasShares(t, "beside", "before", 0, slice(50, 2))
	app := r.hasShares(t, "beside", "app", 0, slice(60, 4))
	if side[0].UUID == app[0].UUID {
		t.Errorf("sidecar and app container have 110 %% of card %s", app[0].UUID)
	}
	t.Logf("sidecar on %v, init container on %v, app container on %v", side, before, app)
	r.count(t)
	r.stopContainer(t, "beside", "side")
	r.waitRestart(t, "beside", "side", 1)
	r.hasShares(t, "beside", "side", 0, side...)
	r.hasShares(t, "beside", "app", 0, app...)
}

// besideHCAs: a container with a share and an HCA has the HCA that is nearest to
// the card that it was bound to, whatever the kubelet's tickets name.
func besideHCAs(t *testing.T, r *rig) {
	m := r.machine(t)
	pods := []*corev1.Pod{
		r.pod("near-0", box{hcas: 1, more: share(70, 1)}), r.pod("near-1", box{hcas: 1, more: share(70, 1)}),
		r.pod("near-2", box{hcas: 1, more: share(70, 1)}), r.pod("near-3", box{hcas: 2, more: shares(2, 70, 1)}),
	}
	r.create(t, pods...)
	seen := map[string]bool{}
	for i, p := range pods {
		r.waitReady(t, p.Name)
		want := slices.Repeat([]allocation.Share{slice(70, 1)}, max(1, i-1))
		var gpus []int
		for _, s := range r.hasShares(t, p.Name, "app", len(want), want...) {
			if seen[s.UUID] {
				t.Errorf("card %s has two consumers of 70 %%", s.UUID)
			}
			seen[s.UUID] = true
			gpus = append(gpus, slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == s.UUID }))
		}
		s := r.sees(t, p.Name, "app")
		if diff := cmp.Diff(first(nearest(m, gpus)), s.HCAs); diff != "" {
			t.Errorf("%s: HCAs (-nearest to its cards %v +got):\n%s", p.Name, gpus, diff)
		}
	}
}

// ownWords: what the pod has in its own environment and annotations makes its
// share no larger. An annotation of the node's that is edited is put right.
func ownWords(t *testing.T, r *rig) {
	all := r.gpuAt(t, 0) + "," + r.gpuAt(t, 1)
	p := r.pod("words", box{more: share(10, 1), env: map[string]string{
		cdi.EnvGPUs: all, cdi.EnvShares: "{}", "NVIDIA_VISIBLE_DEVICES": "all",
	}})
	forged := allocation.Bound{Version: allocation.Version, Node: r.Node(), Containers: map[string]allocation.Sharing{
		"app": {Shares: []allocation.Share{{UUID: r.gpuAt(t, 7), VCore: 100, MemoryMiB: 80000}}, Policy: "fixed-share", By: allocation.ByNode},
	}}
	p.Annotations = map[string]string{apinames.SGPUBound: forged.String()}
	r.run(t, p)
	right := func() {
		t.Helper()
		r.waitPod(t, "words", func(p *corev1.Pod) string {
			if b, err := boundTo(p); err != nil || b.Containers["app"].Shares[0].VCore != 10 {
				return "its annotation is not put right: " + p.Annotations[apinames.SGPUBound]
			}
			return ""
		})
	}
	right()
	mine := r.hasShares(t, "words", "app", 0, slice(10, 1))
	// No enforcer is configured here, and what the pod's annotation left out of that changes nothing.
	r.waitEvent(t, "words", "SharesNotEnforced", "container app within its share of memory and compute, which is only counted")
	if diff := cmp.Diff([]string{"memory", "compute"}, r.waitBound(t, "words", "app").NotEnforced); diff != "" {
		t.Errorf("notEnforced in the annotation (-want +got):\n%s", diff)
	}
	if s := r.sees(t, "words", "app"); s.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("NVIDIA_VISIBLE_DEVICES is %q", s.Env["NVIDIA_VISIBLE_DEVICES"])
	}
	forged.Containers["app"].Shares[0].UUID = r.gpuAt(t, 6)
	if err := r.annotatePod(t.Context(), "words", map[string]string{apinames.SGPUBound: forged.String()}); err != nil {
		t.Fatal(err)
	}
	right()
	r.hasShares(t, "words", "app", 0, mine...)
	if reported := r.events(t, "words", "SharesNotEnforced"); len(reported) != 1 {
		t.Errorf("Events SharesNotEnforced, one for the life of a pod: %q", reported)
	}
	r.count(t)
}
