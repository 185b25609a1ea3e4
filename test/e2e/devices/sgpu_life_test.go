//go:build e2e && linux

package devices

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// besides adds containers to a pod.
func besides(p *corev1.Pod, boxes ...box) *corev1.Pod {
	for _, b := range boxes {
		p.Spec.Containers = append(p.Spec.Containers, b.container())
	}
	return p
}

// TestSGPUContainers: a pod's own environment and annotations never enlarge its share.
func TestSGPUContainers(t *testing.T) {
	r := sgpu(t)
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
