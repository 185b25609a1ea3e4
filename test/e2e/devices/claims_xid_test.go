//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// drainedClaims is a configuration for claims in which pods leave an unhealthy GPU.
const drainedClaims = "health: {downAfter: 1s, upAfter: 1s, remediation: drain}\nmode: claims\n"

// TestClaimsXID: after an XID the GPU of a claim gets a taint, the pod's status the reason, and the pod is evicted.
// Another pod that uses the same claim gets another GPU. The taint goes with the fault. The log has the times of all.
func TestClaimsXID(t *testing.T) {
	r, n := newDriverRig(t, "claims-xid")
	r.configure(t, drainedClaims)
	if err := r.Apply(t.Context(), claimClasses()); err != nil {
		t.Fatal(err)
	}
	r.plugin.args = append(r.plugin.args, "--claims-dir", "/var/lib/kubelet/plugins/"+claims.Driver)
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 8)
	r.claim(t, "train", exactly("gpu", "gpu.heddle.dev", 1))
	r.run(t, r.claimant("first", "train"))
	gpus, _ := given(t, r.report(t, "first", "app"))
	sick := slices.IndexFunc(n.control.GPUs, func(g nvidia.GPU) bool { return g.UUID == gpus[0] })

	start := time.Now()
	step := func(what string, answer func() string) {
		t.Helper()
		text := ""
		eventually(t, func() string {
			if text = answer(); text == "" {
				return "not yet: " + what
			}
			return ""
		})
		t.Logf("%5.1f s  %s: %s", time.Since(start).Seconds(), what, text)
	}
	taint := func() string {
		for name, d := range r.claimable(t) {
			for _, taint := range d.Taints {
				if strings.HasPrefix(name, string(claims.GPU)+"-") && taint.Key == claims.TaintUnhealthy {
					return fmt.Sprintf("%s %s:%s", name, taint.Key, taint.Effect)
				}
			}
		}
		return ""
	}
	n.control.Events = append(n.control.Events, nvidia.Event{GPU: sick, Type: xidCriticalError, Data: 79})
	n.control.Failures = []nvidia.Failure{{Function: "DeviceGetFieldValues", GPU: sick, Arg: nvidia.Any, Return: nvidia.GPUIsLost}}
	n.set(t)
	t.Logf("  0.0 s  XID 79 of GPU %s", gpus[0])
	step("taint", taint)
	step("status of the pod", func() string {
		p := r.getPod(t, "first")
		if p == nil {
			return "the pod is gone already"
		}
		for _, s := range status(p, "app").AllocatedResourcesStatus {
			for _, h := range s.Resources {
				if h.Health == corev1.ResourceHealthStatusUnhealthy {
					return fmt.Sprintf("%s %s", s.Name, h.Health)
				}
			}
		}
		return ""
	})
	step("eviction", func() string {
		p := r.getPod(t, "first")
		if p == nil {
			return "the pod is gone"
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget {
				return c.Reason
			}
		}
		return ""
	})
	r.waitGone(t, "first")
	r.run(t, r.claimant("second", "train"))
	now, _ := given(t, r.report(t, "second", "app"))
	if slices.Equal(now, gpus) {
		t.Errorf("the next pod has the GPU with the fault, %v", now)
	}
	t.Logf("%5.1f s  another pod with the claim runs on GPU %s", time.Since(start).Seconds(), now[0])
	n.control.Failures = nil
	n.set(t)
	step("after the fault", func() string {
		if taint() != "" {
			return ""
		}
		return "no taint"
	})
	r.waitClaimable(t, 8)
}

// xidCriticalError is NVML's type of such an event (nvmlEventTypeXidCriticalError).
const xidCriticalError = 8
