//go:build e2e && linux

package devices

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestTwoMakers: a node with GPUs of NVIDIA and of AMD offers both, each under its
// maker's name, and a pod opens those it was given alone.
func TestTwoMakers(t *testing.T) {
	beside(t)
	r := newRig(t, options{name: "makers", machine: "two-makers", config: quickHealth + "domains: {vendor: auto}\n"})
	r.waitAllocatable(t, gpuResource, 2, waitStart)
	r.waitAllocatable(t, amdResource, 1, waitStart)
	m := r.machine(t)
	of := func(vendor string) (uuids []string) {
		for i := range m.GPUs {
			if m.GPUs[i].Vendor == vendor {
				uuids = append(uuids, m.GPUs[i].UUID)
			}
		}
		return uuids
	}
	r.run(t, r.pod("amd", box{hcas: 1, more: corev1.ResourceList{amdResource: quantity(1)}}))
	r.run(t, r.pod("nvidia", box{gpus: 2, hcas: 1}))
	if s := r.has(t, "amd", "app", 1, 1); !slices.Equal(s.GPUs, of("amd.com")) {
		t.Errorf("the pod of AMD's has %v", s.GPUs)
	}
	s := r.has(t, "nvidia", "app", 2, 1)
	slices.Sort(s.GPUs)
	if want := slices.Sorted(slices.Values(of(""))); !slices.Equal(s.GPUs, want) {
		t.Errorf("the pod of NVIDIA's has %v, want %v", s.GPUs, want)
	}
}
