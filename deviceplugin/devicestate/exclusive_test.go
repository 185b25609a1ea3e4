package devicestate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

func oneSharer(c *config.NodeConfig) {
	c.RDMA.Resources = slices.Clone(c.RDMA.Resources)
	c.RDMA.Resources[0].Sharers = 1
}

// TestHCAsOfOnePodAreThoseThatTheirIDsName: neither a GPU beside another HCA nor a
// port that is down makes it another one, since CNI plugins act on the same IDs.
func TestHCAsOfOnePodAreThoseThatTheirIDsName(t *testing.T) {
	r := newRig(t, "dgx-h100", oneSharer)
	h := func(name string) string { return hcaNamed(r.machine, name).PCI }
	want := asks{gpus: r.gpuIDs(0), hcas: {h("mlx5_9"), h("mlx5_3")}}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_3", "mlx5_9"}) {
		t.Errorf("given %v", got.given())
	}
	if e := r.specs.takeEvents(); len(e) != 1 || !strings.Contains(e[0], "HCANotLocal") {
		t.Errorf("events: %v", e)
	}
	r.down("mlx5_9")
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_3"}) {
		t.Errorf("with a port down: %v", got.given())
	}
	if e := r.specs.takeEvents(); len(e) == 0 || !strings.Contains(e[0], "FewerHCAs") || !strings.Contains(e[0], "2 HCAs requested, 1 available: mlx5_9: ") {
		t.Errorf("events: %v", e)
	}
	r.up("mlx5_9")
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_3", "mlx5_9"}) {
		t.Errorf("with the port up again: %v", got.given())
	}
	gone := asks{hcas: {"0000:99:00.0"}}
	r.allocate(pod("gone"), "main", gone)
	if err := r.Prepare(t.Context(), hcas, gone[hcas]); err == nil || !strings.Contains(err.Error(), "0000:99:00.0: it is not there any more") {
		t.Errorf("an HCA that is gone: %v", err)
	}
}

// TestSharedHCAsBecomeExclusive: a pod that holds a replica of the time when HCAs
// were shared keeps its HCA, which no other pod gets until it has ended.
func TestSharedHCAsBecomeExclusive(t *testing.T) {
	r := newRig(t, "dgx-h100")
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

// TestHCAThatMovesIntoThePodsNetwork: a CNI plugin has moved the HCA before its
// container starts, and no scan sees its ports any more. The container gets it.
func TestHCAThatMovesIntoThePodsNetwork(t *testing.T) {
	r := newRig(t, "dgx-h100", oneSharer)
	pci := hcaNamed(r.machine, "mlx5_3").PCI
	want := asks{hcas: {pci}}
	r.spec("a", corev1.Container{Name: "main"})
	r.specs.pods["default/a"].Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "rail"}
	names := r.allocate(pod("a"), "main", want)
	r.alter(func(m *machine.Machine) {
		h := hcaNamed(m, "mlx5_3")
		m.RDMA.NetnsMode = "exclusive"
		*h = machine.HCA{Name: h.Name, PCI: h.PCI, Elsewhere: true, Role: h.Role, CharDevices: h.CharDevices}
	})
	for range 2 {
		r.start(want)
		got := r.mustEnter(names)
		if !slices.Equal(got.given(), []string{"mlx5_3"}) || !slices.Contains(got.Env, "NCCL_IB_HCA==mlx5_3:1") {
			t.Errorf("given %v, environment %q", got.given(), got.Env)
		}
	}
	if e := r.specs.takeEvents(); len(e) > 0 {
		t.Errorf("events %q", e)
	}
}
