package binder

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

// TestHCAsThatFail: a container that runs keeps what it has, and one that
// starts again gets what works.
func TestHCAsThatFail(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(0, 1), hcas: r.tickets("mlx5_0", "mlx5_3")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	r.down("mlx5_3")
	bound := maps.Clone(r.Bound(hcas))
	h := func(name string) string { return hcaNamed(r.machine, name).PCI }
	if diff := cmp.Diff(map[string]string{want[hcas][0]: h("mlx5_0"), want[hcas][1]: h("mlx5_3")}, bound); diff != "" {
		t.Errorf("while it runs (-want +got):\n%s", diff)
	}
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_0", "mlx5_4"}) {
		t.Errorf("at the next start: %v", got.given())
	}
	if e := r.events.take(); len(e) != 1 || !strings.Contains(e[0], "FarHCAs") {
		t.Errorf("events: %v", e)
	}
	r.up("mlx5_3")
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_0", "mlx5_4"}) {
		t.Errorf("when it is back, without need: %v", got.given())
	}
}

// TestResourceLeavesTheConfiguration: who has it keeps it, over restarts too.
func TestResourceLeavesTheConfiguration(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(0), hcas: r.tickets("mlx5_9")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	first := r.mustEnter(names)
	late := asks{hcas: r.tickets("mlx5_4")}
	r.allocate(pod("late"), "main", late)
	r.config.RDMA.Resources = nil
	r.restart()
	r.start(want)
	if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
		t.Errorf("at the next start (-first +next):\n%s", diff)
	}
	if err := r.Bind(t.Context(), hcas, late[hcas]); err == nil || !strings.Contains(err.Error(), "no HCA to be had") {
		t.Errorf("one that never started: %v", err)
	}
	if _, err := r.Name(hcas, want[hcas]); err == nil {
		t.Error("a name was given out")
	}
}

// TestTwoResourcesInOneContainer have different HCAs, and one list of them.
func TestTwoResourcesInOneContainer(t *testing.T) {
	r := newRig(t, "h20-4nic", func(c *config.NodeConfig) {
		second := c.RDMA.Resources[0]
		second.Name = "rdma/second"
		c.RDMA.Resources = append(c.RDMA.Resources, second)
	})
	r.spec("a", corev1.Container{Name: "main"})
	want := asks{gpus: r.cards(2), hcas: r.tickets("mlx5_1"), "rdma/second": r.tickets("mlx5_1")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	got := r.mustEnter(names)
	if !slices.Contains(got.Env, "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1") || !slices.Equal(got.Nodes, []string{"rdma_cm", "uverbs0", "uverbs1"}) {
		t.Errorf("%+v", got)
	}
	more := asks{hcas: r.tickets("mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_3/1"), "rdma/second": r.tickets("mlx5_0/1", "mlx5_1/1")}
	names = r.allocate(pod("b"), "main", more)
	r.start(more)
	if got := r.mustEnter(names); len(got.Nodes) != 5 {
		t.Errorf("more than there are HCAs: %+v", got)
	}
	if e := r.events.take(); e != nil {
		t.Errorf("events: %v", e)
	}
}
