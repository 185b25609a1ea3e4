//go:build e2e && linux

package devices

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	apinames "github.com/heddle-dev/heddle/api/wellknown"
)

// TestGPUCordon takes a GPU out for repair by the command, while a pod has a
// part of it. No new pod gets it, over a restart of the plugin, and the
// pod does not notice, until the GPU is put back.
func TestGPUCordon(t *testing.T) {
	r := sgpu(t)
	r.run(t, r.pod("consumer", box{more: share(30, 4)}))
	mine := r.hasShares(t, "consumer", "app", 0, slice(30, 4))
	uuid := mine[0].UUID
	before := r.started(t, "consumer")
	t.Cleanup(func() { r.heddle(t, "gpu", "uncordon", r.Node(), uuid) })

	out := r.heddle(t, "gpu", "cordon", r.Node(), uuid)
	if !strings.Contains(out, "is cordoned") || r.node(t).Annotations[apinames.CordonedGPUs] != uuid {
		t.Errorf("it prints %q; the Node's annotations are %v", out, r.node(t).Annotations)
	}
	r.waitShares(t, allSlots-16, allCores-100, allGiB-79)
	r.cordoned(t, uuid, "first")

	r.plugin.restart(t)
	r.cordoned(t, uuid, "plugin-again")
	if diff := cmp.Diff(before, r.started(t, "consumer")); diff != "" {
		t.Errorf("the pod on the card noticed (-before +after):\n%s", diff)
	}
	if out := r.heddle(t, "doctor", "--node", r.Node()); !strings.Contains(out, "GPU "+uuid+" is cordoned") {
		t.Errorf("doctor does not show it:\n%s", out)
	}
	r.heddle(t, "gpu", "uncordon", r.Node(), uuid)
	r.waitShares(t, allSlots, allCores, allGiB)
	r.run(t, r.pod("joins", box{more: share(60, 4)}))
	if got := r.hasShares(t, "joins", "app", 0, slice(60, 4)); got[0].UUID != uuid {
		t.Errorf("binpack puts 60 %% on %v and not beside 30 %% on %s", got, uuid)
	}
}

// cordoned fails the test if a new pod gets a card. Binpack would put one
// beside the consumer.
func (r *rig) cordoned(t *testing.T, uuid, name string) {
	t.Helper()
	r.run(t, r.pod(name, box{more: share(20, 1)}))
	if got := r.hasShares(t, name, "app", 0, slice(20, 1)); len(got) == 1 && got[0].UUID == uuid {
		t.Errorf("%s got the cordoned card", name)
	}
	r.remove(t, name)
	// A request that only a ninth card could grant has the reason.
	for _, c := range r.published(t).GPUs {
		if c.UUID == uuid && (c.Healthy || !strings.Contains(c.Reason, "cordoned")) {
			t.Errorf("schedulers get %+v of it", c)
		}
	}
}

// started is a container's start and what it can open.
func (r *rig) started(t *testing.T, pod string) string {
	t.Helper()
	s, err := interpret(r.ask(t, pod, "app"), r.machine(t))
	if err != nil {
		t.Error(err)
	}
	c := status(r.waitPod(t, pod, func(*corev1.Pod) string { return "" }), "app")
	return fmt.Sprintf("%s, restarts %d, GPUs %v", c.ContainerID, c.RestartCount, s.GPUs)
}
