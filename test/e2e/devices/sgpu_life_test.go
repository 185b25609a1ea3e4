//go:build e2e && linux

package devices

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
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
	r.hasShares(t, "resized", "app", slice(30, 4))
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
	app := r.hasShares(t, "several", "app", slice(30, 4))
	second := r.hasShares(t, "several", "second", slice(20, 8))
	pair := r.hasShares(t, "several", "pair", slice(10, 1), slice(10, 1))
	if none := r.sees(t, "several", "none"); len(none.GPUs) > 0 || none.Devices != nil {
		t.Errorf("a container that asked for nothing sees %+v", none)
	}
	if app[0].UUID != second[0].UUID || pair[0].UUID == pair[1].UUID {
		t.Errorf("shares are %v, %v and %v: the first two belong on one card, the pair on two", app, second, pair)
	}
	r.count(t)

	r.stopContainer(t, "several", "app")
	running := r.waitRestart(t, "several", "app", 1)
	r.hasShares(t, "several", "app", app...)
	r.killContainer(t, status(running, "pair").ContainerID)
	r.waitRestart(t, "several", "pair", 1)
	r.hasShares(t, "several", "pair", pair...)
	r.hasShares(t, "several", "second", second...)
	if n := len(r.bindings(t)["several/app"]); n != 1 {
		t.Errorf("the container has %d records of shares after its restart", n)
	}
	r.count(t)
}

// ownWords: a pod's own environment and annotations never enlarge its share.
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
	// No enforcer is configured here, and what the pod's annotation left out of that changes nothing.
	r.waitEvent(t, "words", "SharesNotEnforced", "container app within its share of memory and compute, which is only counted")
	r.hasShares(t, "words", "app", slice(10, 1))
	if diff := cmp.Diff([]string{"memory", "compute"}, r.waitBound(t, "words", "app").NotEnforced); diff != "" {
		t.Errorf("notEnforced in the annotation (-want +got):\n%s", diff)
	}
	if s := r.sees(t, "words", "app"); s.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("NVIDIA_VISIBLE_DEVICES is %q", s.Env["NVIDIA_VISIBLE_DEVICES"])
	}
	r.count(t)
}
