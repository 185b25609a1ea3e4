package devicestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

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
