//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

const amdResource = "amd.com/gpu"

// TestAMD: on a replayed node of AMD's GPUs, whose resource has AMD's name because
// domains.vendor is auto, pods with four GPUs, the documented one first, get the four of one XGMI hive each and
// the HCAs beside them, and can open no other. Nothing that the node or a pod shows
// is in the words of another maker.
func TestAMD(t *testing.T) {
	r := newRig(t, options{
		name: "amd", machine: "amd-mi210-two-hives", config: quickHealth + "domains: {vendor: auto}\n",
	})
	r.waitAllocatable(t, amdResource, 8)
	r.waitAllocatable(t, hcaResource, 4*64)
	if n := r.allocatable(t, gpuResource); n > 0 {
		t.Errorf("the node offers %d of %s", n, gpuResource)
	}
	m := r.machine(t)
	hive := func(s *seen) (buses []string) {
		for i := range m.GPUs {
			if slices.Contains(s.GPUs, m.GPUs[i].UUID) {
				buses = append(buses, strings.TrimSuffix(strings.TrimPrefix(m.GPUs[i].PCI, "0000:"), ":00.0"))
			}
		}
		return buses
	}
	four := corev1.ResourceList{amdResource: quantity(4)}
	var got []string
	example := &corev1.Pod{}
	documented(t, "amd/gpu-rdma-pod.yaml", example)
	for _, p := range []*corev1.Pod{r.atHand(example), r.pod("two", box{hcas: 2, more: four})} {
		r.run(t, p)
		name := p.Name
		s := r.has(t, name, p.Spec.Containers[0].Name, 4, 2)
		got = append(got, fmt.Sprint(hive(s), s.HCAs))
		noOtherMaker(t, s)
		if s.Env["AMD_VISIBLE_DEVICES"] != "none" {
			t.Errorf("AMD_VISIBLE_DEVICES is %q", s.Env["AMD_VISIBLE_DEVICES"])
		}
	}
	slices.Sort(got)
	want := []string{"[03 26 43 63] [mlx5_0 mlx5_1]", "[83 a3 c3 e3] [mlx5_2 mlx5_3]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hives and HCAs (-want +got):\n%s", diff)
	}
	if word := otherMaker(r.plugin.log.String()); word != "" {
		t.Errorf("the log has %q:\n%s", word, r.plugin.log)
	}
}
