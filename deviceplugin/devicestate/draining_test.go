package devicestate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// TestReservedSlotOfADrainingGPU: the kubelet admitted a pod to a slot just
// before all GPUs were to be handed out exclusively again. The slot keeps its GPU
// from moving, so the pod may as well start, and newcomers may not.
func TestReservedSlotOfADrainingGPU(t *testing.T) {
	r := shareRig(t)
	r.change = func(inv *inventory.Inventory) {
		for i := range inv.Shared {
			inv.Shared[i].Unhealthy, inv.Shared[i].Draining = "moves to native when default/a ends", true
		}
	}
	r.restart()
	first := r.consumer("a", "60/4", r.slot(3, 0))
	r.start(first)
	if diff := cmp.Diff([]int{3}, r.gpusOf("a", "main")); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	// Its GPU has 40 % left, and no other GPU is to be had.
	large := r.consumer("b", "60/4", r.slot(3, 1))
	if err := r.prepareShares(large); err == nil || !strings.Contains(err.Error(), "GPU 3: 40 % of 100 left; needs 60") {
		t.Errorf("error %v", err)
	}
	r.nothingOvercommitted()
}
