package labels_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/test/machines"
)

// TestTwoMakers: the GPUs of the maker of most are shared, the other's are whole; and
// while the other's driver is away its labels and its taint stay.
func TestTwoMakers(t *testing.T) {
	m := machines.Load(t, "two-makers")
	c := config.Default()
	c.Domains.Vendor, c.Mode, c.Taints.GPUProduct, c.Resources = "auto", config.ModeSGPU, true, config.Resources{}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	on := c.For(m)
	up := labels.Compute(m, &on, host.Vendors())
	for key, want := range map[string]string{
		"nvidia.com/gpu.sharing-strategy": "sgpu", "amd.com/gpu.sharing-strategy": "none", "amd.com/gpu.replicas": "1",
		"nvidia.com/gpu.driver-version": "550.163.01", "amd.com/gpu.driver-version": "6.10.5",
	} {
		if got := up.Labels[key]; got != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	products := func(taints []corev1.Taint) (keys string) {
		for _, taint := range taints {
			keys += taint.Key + " "
		}
		return keys
	}
	const both = "nvidia.com/gpu.product amd.com/gpu.product "
	if got := products(up.Taints); got != both {
		t.Errorf("taints %q", got)
	}
	away := *m
	away.GPUs = nil
	for _, g := range m.GPUs {
		if g.Vendor == "" {
			away.GPUs = append(away.GPUs, g)
		}
	}
	away.Probes = []machine.Probe{{Name: "kfd", State: machine.ProbeAbsent, Reason: "the amdgpu driver is not loaded"}}
	if labels.DriverAbsent(&away, host.Vendors()) == "" {
		t.Fatal("no driver is absent")
	}
	on = c.For(&away)
	now := labels.Compute(&away, &on, host.Vendors())
	kept, lost := now.Keep(&on, up.Labels, up.Taints)
	if !lost || kept.Labels["amd.com/gpu.product"] != up.Labels["amd.com/gpu.product"] || products(kept.Taints) != both {
		t.Errorf("lost %v, kept %v, taints %v", lost, kept.Labels, kept.Taints)
	}
}
