package labels_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// The reference's labels change from run to run on such a machine.
func TestMixedMachineIsStable(t *testing.T) {
	all := append(gpus(0, 4, "NVIDIA L40S", 46068, "ada-lovelace", "8.9"), gpus(4, 4, "NVIDIA H100 PCIe", 81559, "hopper", "9.0")...)
	c := section(t, "")
	first := labels.Compute(hosting(all...), c, host.Vendors())
	for range 1000 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if diff := cmp.Diff(first, labels.Compute(hosting(all...), c, host.Vendors())); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestUncompiledRulesAreProblems(t *testing.T) {
	c := config.Default()
	c.Labels = []config.LabelRule{{Key: "ring", Value: "'ff'"}}
	want := []labels.Problem{{Key: "ring", Reason: "the rule is not compiled"}}
	if diff := cmp.Diff(want, labels.Compute(hosting(), &c, host.Vendors()).Problems); diff != "" {
		t.Error(diff)
	}
}

func TestAllowed(t *testing.T) {
	got := labels.Allowed(section(t, "labels: [{key: ring, value: node}]"), section(t, "domains: {company: b.com}"))
	for _, key := range []string{"ring", "nvidia.com/gpu.product", "nvidia.com/gpu.*.count", "nvidia.com/mig-*.count", "b.com/node.usage", "heddle.dev/node.usage"} {
		if !slices.Contains(got.Labels, key) {
			t.Errorf("labels lack %s", key)
		}
	}
	want := []string{"b.com/control-plane", "b.com/node.usage", "heddle.dev/control-plane", "heddle.dev/node.usage", "nvidia.com/gpu.product"}
	if diff := cmp.Diff(want, got.Taints); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"heddle.dev/driver-absent-since", "heddle.dev/owned-taints"}, got.Annotations); diff != "" {
		t.Error(diff)
	}
}

// Whatever a driver calls its GPUs, the labels are valid.
func FuzzCompute(f *testing.F) {
	f.Add("NVIDIA H100 80GB HBM3", "550.163.01", "12.4", "9.0", "1g.10gb+me", "DGX H100")
	f.Add("", "..", ".", ".", "", "\x00é-")
	f.Add(" ", "0", "0", "0", "0", "0")
	f.Fuzz(func(t *testing.T, product, driver, cuda, compute, profile, dmi string) {
		all := append(gpus(0, 2, product, 1, "", compute), gpus(2, 1, "NVIDIA H100", 2, "hopper", "9.0")...)
		all[0].MIG = machine.MIG{Enabled: true, Devices: []machine.MIGDevice{{Profile: profile}}}
		all[0].VGPU = &machine.VGPU{HostDriverVersion: driver, HostDriverBranch: dmi}
		all[1].Fabric = &machine.Fabric{ClusterUUID: dmi, State: machine.FabricCompleted}
		m := hosting(all...)
		m.Driver, m.Product = machine.Driver{Version: driver, CUDA: cuda}, dmi
		c := section(t, "migStrategy: mixed\npreset: scheme")
		valid(t, c, labels.Compute(m, c, host.Vendors()))
	})
}

func BenchmarkCompute(b *testing.B) {
	m := hosting(h100(8)...)
	for name, text := range map[string]string{
		"plain": "",
		"rules": `labels:
- {key: cloud.ebtech.com/gpu, value: "gpu.model + '_' + gpu.interconnect + '_' + gpu.memory", when: "gpu.count > 0"}
- {key: cloud.ebtech.com/cpu, value: cpu.codename}
- {key: ring, value: "'ff'", when: "node in ['n1', 'n2']"}
`,
	} {
		c := section(b, text)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				labels.Compute(m, c, host.Vendors())
			}
		})
	}
}
