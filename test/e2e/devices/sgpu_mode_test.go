//go:build e2e && linux

package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// TestModeSwitch changes the mode of the node by the ConfigMap: free GPUs move, two GPUs in use
// keep their mode, which the Node and doctor explain, and move once their pods are gone. The
// invariants under thousands of switches are those of deviceplugin/gpumode.
func TestModeSwitch(t *testing.T) {
	r := sgpu(t)
	const native, half, shared = quickHealth + "mode: native\n", sharedGPUs + "sgpu: {gpus: [0, 1, 2, 3]}\n", sharedGPUs
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	r.configure(t, half)
	r.waitModes(t, all[4:], all[:4])
	r.create(t, r.pod("whole", box{gpus: 1}), r.pod("part", box{more: share(60, 4)}))
	r.waitReady(t, "whole")
	r.waitReady(t, "part")
	whole := r.index(t, r.has(t, "whole", "app", 1, 0).GPUs[0])
	part := r.index(t, r.hasShares(t, "part", "app", slice(60, 4))[0].UUID)
	without := func(gpu int) []int {
		return slices.DeleteFunc(slices.Clone(all), func(i int) bool { return i == gpu })
	}
	before := r.lives(t, "whole", "part")
	for _, tt := range []struct {
		config, message    string
		native, sharedGPUs []int
	}{
		{shared, fmt.Sprintf("GPU %d: native until default/whole ends, then sgpu", whole), nil, without(whole)},
		{native, fmt.Sprintf("GPU %d: sgpu until default/part ends, then native", part), without(part), nil},
	} {
		r.configure(t, tt.config)
		r.waitModes(t, tt.native, tt.sharedGPUs)
		eventually(t, func() string {
			for _, c := range r.node(t).Status.Conditions {
				if c.Type == "HeddleModePending" && c.Status == "True" && c.Message == tt.message {
					return ""
				}
			}
			return "the Node has no condition HeddleModePending with " + tt.message
		})
		if out := r.heddle(t, "doctor", "--node", r.Node()); !strings.Contains(out, tt.message) {
			t.Errorf("doctor does not print %q:\n%s", tt.message, out)
		}
	}
	r.untouched(t, before)
	r.remove(t, "whole", "part")
	r.configure(t, shared)
	r.waitModes(t, nil, all)
	r.waitShares(t, allSlots, allCores, allGiB)
}

// waitModes waits until the kubelet offers these GPUs, by index, whole and in shares, and no others.
func (r *rig) waitModes(t *testing.T, native, shared []int) {
	t.Helper()
	gpus := map[string]int{}
	m := r.machine(t)
	for i := range m.GPUs {
		gpus[m.GPUs[i].UUID] = m.GPUs[i].Index
	}
	// A busy kubelet answers late, and without its answer no GPU moves.
	eventually(t, func() string {
		answer, err := podresources.NewPodResourcesListerClient(r.conn).
			GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
		if err != nil {
			return err.Error()
		}
		is := map[string]map[int]bool{gpuResource: {}, slotResource: {}}
		for _, d := range answer.GetDevices() {
			for _, id := range d.GetDeviceIds() {
				if set := is[d.GetResourceName()]; set != nil {
					uuid, _, _ := strings.Cut(id, "::")
					set[gpus[uuid]] = true
				}
			}
		}
		return cmp.Diff([2][]int{native, shared},
			[2][]int{slices.Sorted(maps.Keys(is[gpuResource])), slices.Sorted(maps.Keys(is[slotResource]))})
	})
}
