//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// wish is a configuration of modes: the cards that it shares.
type wish struct {
	config string
	shared []int
}

func wishes() []wish {
	return []wish{
		{quickHealth + "mode: native\n", nil},
		{quickHealth + "mode: sgpu\nsgpu: {gpus: [0, 1, 2, 3]}\n", []int{0, 1, 2, 3}},
		{quickHealth + "mode: sgpu\n", []int{0, 1, 2, 3, 4, 5, 6, 7}},
	}
}

// TestModeSwitch changes the mode of the node by the ConfigMap: free GPUs move, two GPUs in use
// keep their mode, which the Node and doctor explain, and move once their pods are gone. The
// invariants under thousands of switches are those of deviceplugin/gpumode.
func TestModeSwitch(t *testing.T) {
	r := sgpu(t)
	r.configure(t, wishes()[1].config)
	r.waitModes(t, wishes()[1].shared, held{-1, -1})
	r.create(t, r.pod("whole", box{gpus: 1}), r.pod("part", box{more: share(60, 4)}))
	r.waitReady(t, "whole")
	r.waitReady(t, "part")
	holders := held{
		whole: r.index(t, r.has(t, "whole", "app", 1, 0).GPUs[0]),
		part:  r.index(t, r.hasShares(t, "part", "app", 0, slice(60, 4))[0].UUID),
	}
	before := r.started(t, "whole") + r.started(t, "part")
	for _, w := range wishes() {
		r.configure(t, w.config)
		r.waitModes(t, w.shared, holders)
	}
	r.explained(t, holders)
	if after := r.started(t, "whole") + r.started(t, "part"); after != before {
		t.Errorf("pods noticed: they were %s, and are %s", before, after)
	}
	r.remove(t, "whole", "part")
	r.configure(t, wishes()[2].config)
	r.waitModes(t, wishes()[2].shared, held{-1, -1})
	r.waitShares(t, allSlots, allCores, allGiB)
}

// held are the cards that pods hold, by index: whole, and a part of it; -1 for
// none.
type held struct{ whole, part int }

// explained switches so that each of the held cards should move, and looks how
// that is reported.
func (r *rig) explained(t *testing.T, h held) {
	t.Helper()
	for _, tt := range []struct {
		wish    wish
		message string
	}{
		{wishes()[2], fmt.Sprintf("GPU %d: native until default/whole ends, then sgpu", h.whole)},
		{wishes()[0], fmt.Sprintf("GPU %d: sgpu until default/part ends, then native", h.part)},
	} {
		if err := r.writeConfig(tt.wish.config); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() string {
			if pending, message := r.pending(t); !pending || message != tt.message {
				return fmt.Sprintf("HeddleModePending is %t with %q, want %q", pending, message, tt.message)
			}
			return ""
		})
		if out := r.heddle(t, "doctor", "--node", r.Node()); !strings.Contains(out, tt.message) {
			t.Errorf("doctor does not print %q:\n%s", tt.message, out)
		}
	}
}

// pending is the Node's condition.
func (r *rig) pending(t *testing.T) (pending bool, message string) {
	t.Helper()
	for _, c := range r.node(t).Status.Conditions {
		if c.Type == "HeddleModePending" {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, ""
}

// lists are the cards that the kubelet offers whole and in shares, by index.
func (r *rig) lists(ctx context.Context, gpus map[string]int) (whole, shared []int, err error) {
	answer, err := podresources.NewPodResourcesListerClient(r.conn).
		GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, nil, err
	}
	is := map[string]map[int]bool{gpuResource: {}, slotResource: {}}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			if set := is[d.GetResourceName()]; set != nil {
				set[gpus[deviceIDOf(id)]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(is[gpuResource])), slices.Sorted(maps.Keys(is[slotResource])), nil
}

// indices are those of the cards, by UUID.
func (r *rig) indices(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	m := r.machine(t)
	for i := range m.GPUs {
		all[m.GPUs[i].UUID] = m.GPUs[i].Index
	}
	return all
}

// waitModes waits until the kubelet offers every card as it should: shared or
// whole, or to no pod if it is held in the other mode.
func (r *rig) waitModes(t *testing.T, share []int, h held) {
	t.Helper()
	var want [2][]int
	for gpuAt := range 8 {
		shared := slices.Contains(share, gpuAt)
		switch {
		case shared && gpuAt != h.whole:
			want[1] = append(want[1], gpuAt)
		case !shared && gpuAt != h.part:
			want[0] = append(want[0], gpuAt)
		}
	}
	gpus := r.indices(t)
	// A busy kubelet answers late, and without its answer no GPU moves.
	eventually(t, func() string {
		whole, shared, err := r.lists(t.Context(), gpus)
		if err != nil {
			return err.Error()
		}
		return cmp.Diff(want, [2][]int{whole, shared})
	})
}
