//go:build e2e && linux

package devices

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
)

// TestFewerHealthyHCAsThanAskedFor: seven HCAs, one of them without a cable.
// With count distinct a pod that asks for seven gets six and an Event; with
// strict it waits, has the reason, and starts by itself once the cable is in.
func TestFewerHealthyHCAsThanAskedFor(t *testing.T) {
	beside(t)
	const strict = "rdma/strict"
	r := newRig(t, options{name: "deadport", machine: "one-dead-port", config: quickHealth + `
rdma:
  resources:
  - {name: ` + hcaResource + `, sharers: 4, count: distinct}
  - {name: ` + strict + `, sharers: 4, count: strict}
`})
	const well, slots = 6, 4
	r.waitAllocatable(t, hcaResource, well*slots, waitStart)
	r.waitAllocatable(t, strict, well*slots, waitStart)
	r.waitAllocatable(t, gpuResource, 7, waitStart) // One GPU is lost.

	r.run(t, r.pod("distinct", box{hcas: 7}))
	s := r.sees(t, "distinct", "app")
	if err := s.check(0, 6); err != nil {
		t.Error(err)
	}
	r.waitEvent(t, "distinct", wellknown.EventFewerHCAs, "7 HCAs requested, 6 available: mlx5_3: ", waitStart)

	r.create(t, r.pod("strict", box{more: corev1.ResourceList{strict: quantity(7)}}))
	r.waitPod(t, "strict", waitStart, func(p *corev1.Pod) string {
		if w := status(p, "app").State.Waiting; w == nil || !strings.Contains(w.Message, "7 HCAs requested, 6 available") {
			return "it does not have the reason it waits"
		}
		return ""
	})
	condition := r.condition(t)
	if condition.Status != corev1.ConditionFalse || !strings.Contains(condition.Message, "mlx5_3: ") ||
		!strings.Contains(condition.Message, hcaResource) || !strings.Contains(condition.Message, strict) {
		t.Errorf("condition is %+v", condition)
	}

	r.edit(t, func(m *machine.Machine) { m.HCAs[3].Ports[0] = m.HCAs[2].Ports[0] })
	begin := time.Now()
	r.waitReady(t, "strict", 30*time.Second)
	t.Logf("the strict pod started by itself %.1f s after the port was up", time.Since(begin).Seconds())
	if err := r.sees(t, "strict", "app").check(0, 7); err != nil {
		t.Error(err)
	}
	// What runs is left as it is.
	now, err := interpret(r.ask(t, "distinct", "app"), r.machine(t))
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(s.HCAs, now.HCAs); diff != "" {
		t.Errorf("HCAs of the running pod (-before +after):\n%s", diff)
	}
}

// TestResourceThatMatchesNothing: the resource is there with 0, and everything
// that a person looks at has the reason.
func TestResourceThatMatchesNothing(t *testing.T) {
	beside(t)
	const nothing = "rdma/roce"
	r := newRig(t, options{name: "nothing", config: quickHealth + `
rdma:
  resources:
  - {name: ` + hcaResource + `}
  - {name: ` + nothing + `, selectors: {ifNames: [nosuch*]}}
`})
	r.waitAllocatable(t, nothing, 0, waitStart)
	r.waitAllocatable(t, hcaResource, 8*64, waitStart)
	r.waitCondition(t, corev1.ConditionFalse, "NothingToOffer", nothing)
	r.waitUnavailable(t, nothing, "NothingToOffer", 1)
	// What has devices is served all the same.
	r.run(t, r.pod("others", box{gpus: 1, hcas: 1}))
	r.has(t, "others", "app", 1, 1)
	// And a correction of the configuration is enough.
	if err := r.writeConfig(quickHealth + `
rdma:
  resources:
  - {name: ` + hcaResource + `}
  - {name: ` + nothing + `, sharers: 2, selectors: {roles: [storage]}}
`); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, nothing, 4*2, 90*time.Second)
	r.waitCondition(t, corev1.ConditionTrue, health.ConditionReady, "")
	if lines := r.metrics(t, "heddle_unavailable"); len(lines) > 0 {
		t.Errorf("metrics still have %q", lines)
	}
}

// condition is HeddleReady; its zero value where the Node does not have it.
func (r *rig) condition(t *testing.T) corev1.NodeCondition {
	t.Helper()
	for _, c := range r.node(t).Status.Conditions {
		if c.Type == wellknown.ConditionDevices {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func (r *rig) waitCondition(t *testing.T, s corev1.ConditionStatus, reason, text string) {
	t.Helper()
	eventually(t, 20*time.Second, func() string {
		c := r.condition(t)
		if c.Status != s || c.Reason != reason || !strings.Contains(c.Message, text) {
			return fmt.Sprintf("condition is %s %s %q, want %s %s with %q", c.Status, c.Reason, c.Message, s, reason, text)
		}
		return ""
	})
}

func (r *rig) waitUnavailable(t *testing.T, resource, reason string, n int) {
	t.Helper()
	want := fmt.Sprintf("heddle_unavailable{reason=%q,resource=%q} %d", reason, resource, n)
	eventually(t, 20*time.Second, func() string {
		if lines := r.metrics(t, "heddle_unavailable"); len(lines) != 1 || lines[0] != want {
			return fmt.Sprintf("metrics have %q, want %q", lines, want)
		}
		return ""
	})
}
