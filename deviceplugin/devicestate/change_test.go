package devicestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// TestResourceLeavesTheConfiguration: who has it keeps it, over restarts too,
// and who was given it and has not started gets the HCAs that are named.
func TestResourceLeavesTheConfiguration(t *testing.T) {
	r := newRig(t)
	want := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_9")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	first := r.mustEnter(names)
	late := asks{gpus: r.gpuIDs(2), hcas: r.deviceIDs("mlx5_4", "mlx5_4/1", "mlx5_9/1", "mlx5_6")}
	lateNames := r.allocate(pod("late"), "main", late)
	dark := asks{hcas: r.deviceIDs("mlx5_6/1")}
	r.allocate(pod("dark"), "main", dark)
	all := asks{hcas: []string{inventory.ReplicaID(allocate.AllHCAs, 0)}}
	r.allocate(pod("all"), "main", all)
	r.down("mlx5_6")
	r.reconfigure(func(c *config.NodeConfig) { c.RDMA.Resources = nil })
	r.restart()
	r.start(want)
	if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
		t.Errorf("at the next start (-first +next):\n%s", diff)
	}
	for range 2 {
		r.start(late)
		if got := r.mustEnter(lateNames); !slices.Equal(got.given(), []string{"mlx5_4", "mlx5_9"}) || len(got.Devices.GPUs) != 1 {
			t.Errorf("one that had not started: %+v", got)
		}
		r.up("mlx5_6") // Too late: it has what it has.
		r.down("mlx5_9")
	}
	r.down("mlx5_6")
	for reason, want := range map[string]asks{
		"no HCA is available: mlx5_6: port 1 is DOWN": dark, "its devices name no HCA": all,
	} {
		if err := r.Prepare(t.Context(), hcas, want[hcas]); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("error %v, want %q", err, reason)
		}
	}
	r.up("mlx5_6")
	r.start(dark)
	if _, err := r.Allocate(hcas, want[hcas]); err == nil {
		t.Error("a name was given out")
	}
}

// TestGPUsOfAnotherName: a container keeps its GPU when the resource gets another
// name, and the fault names it until the pod has gone.
func TestGPUsOfAnotherName(t *testing.T) {
	const renamed = "example.com/gpu"
	r := newRig(t)
	want := asks{gpus: r.gpuIDs(0, 1), hcas: r.deviceIDs("mlx5_0")}
	names := r.allocate(pod("a"), "main", want)
	for _, tc := range []struct{ id, parent, want string }{
		{want[gpus][0], "", "a container that has not started has it as nvidia.com/gpu"},
		{"MIG-1", want[gpus][0], "a container that has not started has the GPU that it is cut from"},
	} {
		if got := r.View().Elsewhere(renamed, tc.id, tc.parent); got != tc.want {
			t.Errorf("before the start: %q, want %q", got, tc.want)
		}
	}
	r.start(want)
	first := r.mustEnter(names)
	r.reconfigure(func(c *config.NodeConfig) { c.Resources.GPU = renamed })
	r.restart()
	if diff := cmp.Diff(map[string]cdi.Kind{gpus: cdi.GPU, hcas: cdi.RDMA}, r.View().Resources()); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	for id, reason := range map[string]string{
		r.gpuIDs(1)[0]: "container main of default/a has it as nvidia.com/gpu", r.gpuIDs(2)[0]: "",
	} {
		if got := r.View().Elsewhere(renamed, id, ""); got != reason {
			t.Errorf("%s: %q, want %q", id, got, reason)
		}
		if got := r.View().Elsewhere(gpus, id, ""); got != "" {
			t.Errorf("%s, under its own name: %q", id, got)
		}
	}
	r.start(want)
	if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
		t.Errorf("at the next start (-first +next):\n%s", diff)
	}
	r.kubelet.Delete("default", "a")
	r.collect()                                                 // The kubelet notices when it is asked,
	r.allocate(pod("next"), "main", asks{renamed: r.gpuIDs(3)}) // and writes it down then.
	r.collect()
	r.pass(goneFor)
	r.collect()
	if got := r.View().Elsewhere(renamed, r.gpuIDs(1)[0], ""); got != "" {
		t.Errorf("its pod has gone: %q", got)
	}
	if got := r.View().Resources(); len(got) != 1 || got[renamed] != cdi.GPU {
		t.Errorf("resources %v", got)
	}
}

func oneSharer(c *config.NodeConfig) {
	c.RDMA.Resources = slices.Clone(c.RDMA.Resources)
	c.RDMA.Resources[0].Sharers = 1
}

// TestSharedHCAsBecomeExclusive: a pod that holds a replica of the time when HCAs
// were shared keeps its HCA, which no other pod gets until it has ended.
func TestSharedHCAsBecomeExclusive(t *testing.T) {
	r := newRig(t)
	h := func(name string) string { return hcaNamed(r.machine, name).PCI }
	old := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_9")} // It gets the one beside its GPU.
	names := r.allocate(pod("old"), "main", old)
	r.start(old)
	first := r.mustEnter(names)
	waiting := asks{hcas: r.deviceIDs("mlx5_4")}
	r.allocate(pod("waiting"), "main", waiting)
	r.reconfigure(oneSharer)
	r.restart()
	r.start(old)
	if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
		t.Errorf("at its next start (-first +next):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{
		h("mlx5_0"): "container main of default/old", h("mlx5_4"): "a container that has not started",
	}, r.View().UnderReplicas(hcas)); diff != "" {
		t.Errorf("HCAs under other IDs (-want +got):\n%s", diff)
	}
	next := asks{hcas: {h("mlx5_0")}}
	r.allocate(pod("next"), "main", next)
	if err := r.Prepare(t.Context(), hcas, next[hcas]); err == nil || !strings.Contains(err.Error(), "another container still has mlx5_0") {
		t.Errorf("while the old pod runs: %v", err)
	}
	r.kubelet.Delete("default", "old")
	r.collect()
	r.allocate(pod("later"), "main", asks{hcas: {h("mlx5_5")}}) // The kubelet writes its checkpoint.
	r.start(next)
}
