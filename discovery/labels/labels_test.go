package labels_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// gpus makes n GPUs of one product, numbered from first.
func gpus(first, n int, product string, mib int64, arch, compute string) (out []machine.GPU) {
	for i := first; i < first+n; i++ {
		out = append(out, machine.GPU{
			UUID: "GPU-" + strconv.Itoa(i), Index: i, PCI: address(i), Product: product, MemoryMiB: mib,
			Architecture: arch, ComputeCapability: compute,
			MIG:    machine.MIG{Capable: arch == "hopper"},
			Health: machine.Health{State: machine.Healthy},
		})
	}
	return out
}

func address(i int) string { return "0000:" + strconv.FormatInt(int64(0x10+i), 16) + ":00.0" }

func hosting(all ...machine.GPU) *machine.Machine {
	m := &machine.Machine{
		Version: machine.Version, Node: "n1", Product: "DGX H100", GPUs: all,
		CPU:    machine.CPU{Codename: "amd-epyc-milan"},
		Driver: machine.Driver{Version: "550.163.01", CUDA: "12.4"},
	}
	for i := range all {
		m.PCI = append(m.PCI, machine.PCIFunction{Address: all[i].PCI, Class: "0x030200", Vendor: "0x10de"})
	}
	return m
}

func h100(n int) []machine.GPU { return gpus(0, n, "NVIDIA H100 80GB HBM3", 81559, "hopper", "9.0") }

// section is the configuration of all nodes, written in YAML.
func section(tb testing.TB, text string) *config.NodeConfig {
	tb.Helper()
	c, err := config.Parse(map[string][]byte{config.KeyVersion: []byte("v1"), config.KeyCluster: []byte(text)}, &rule.CEL{})
	if err != nil {
		tb.Fatal(err)
	}
	return new(c.Cluster.ForVendor("nvidia.com"))
}

// labelsOf picks some labels; "-" stands for one that is not there.
func labelsOf(r labels.Result, keys []string) map[string]string {
	got := map[string]string{}
	for _, key := range keys {
		value, ok := r.Labels[key]
		if !ok {
			value = "-"
		}
		got[key] = value
	}
	return got
}

func TestLabels(t *testing.T) {
	mixed := func() *machine.Machine {
		return hosting(append(gpus(0, 3, "NVIDIA L40S", 46068, "ada-lovelace", "8.9"),
			gpus(3, 5, "NVIDIA H100 PCIe", 81559, "hopper", "9.0")...)...)
	}
	cut := func(profiles ...string) *machine.Machine {
		m := hosting(h100(2)...)
		for i := range m.GPUs {
			m.GPUs[i].MIG.Enabled = true
			for j, profile := range profiles {
				m.GPUs[i].MIG.Devices = append(m.GPUs[i].MIG.Devices, machine.MIGDevice{
					UUID: "MIG-" + strconv.Itoa(i) + strconv.Itoa(j), Profile: profile, MemoryMiB: 9856, Multiprocessors: 16,
					GPUSlices: 1, ComputeSlices: 1, CopyEngines: 1, DecoderEngines: 1, JPEGEngines: 1,
				})
			}
		}
		return m
	}
	with := func(m *machine.Machine, change func(*machine.Machine)) *machine.Machine {
		change(m)
		return m
	}
	fabric := func(cluster string, clique uint32, state string) *machine.Fabric {
		return &machine.Fabric{ClusterUUID: cluster, CliqueID: clique, State: state}
	}
	for _, tt := range []struct {
		name     string
		machine  *machine.Machine
		config   string
		want     map[string]string
		problems []labels.Problem
	}{
		{
			name: "no GPU", machine: hosting(), config: "usage: hybrid",
			want: map[string]string{
				"nvidia.com/gpu.count": "-", "nvidia.com/gpu.machine": "-", "nvidia.com/mig.capable": "-",
				"nvidia.com/cuda.driver.major": "-", "heddle.dev/node.usage": "hybrid",
			},
		},
		{
			name: "a lost GPU counts", machine: with(hosting(h100(8)...), func(m *machine.Machine) {
				m.GPUs[3] = machine.GPU{UUID: "GPU-3", Health: machine.Health{State: machine.Lost}}
			}),
			want: map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81559"},
		},
		{
			name: "of several models it cannot", machine: with(mixed(), func(m *machine.Machine) { m.GPUs[7].Product = "" }),
			want: map[string]string{"nvidia.com/gpu.count": "4", "nvidia.com/gpu.product": "NVIDIA-H100-PCIe"},
			problems: []labels.Problem{
				{Key: "nvidia.com/gpu.count", Reason: "1 GPUs no longer report their product and count with no model"},
			},
		},
		{
			name: "other domains", machine: hosting(h100(1)...), config: "domains: {vendor: a.com, card: acc, company: b.com}\ncontrolPlane: true\nusage: training",
			want: map[string]string{
				"a.com/acc.product": "NVIDIA-H100-80GB-HBM3", "a.com/cuda.driver.major": "550", "nvidia.com/gpu.product": "-",
				"b.com/node.usage": "training", "b.com/control-plane": "true",
			},
		},
		{
			name: "shared", machine: hosting(h100(2)...), config: "mode: sgpu\nsgpu: {slotsPerGPU: 10, enforce: {compute: mps}}",
			want: map[string]string{
				"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.sharing-strategy": "sgpu",
				"nvidia.com/gpu.replicas": "10", "nvidia.com/mps.capable": "true",
			},
		},
		{
			name: "some shared", machine: hosting(h100(2)...), config: "mode: sgpu\nsgpu: {gpus: [GPU-1]}",
			want: map[string]string{"nvidia.com/gpu.sharing-strategy": "hybrid", "nvidia.com/gpu.replicas": "16", "nvidia.com/mps.capable": "false"},
		},
		{
			name: "two-part driver version", machine: with(hosting(h100(1)...), func(m *machine.Machine) { m.Driver.Version = "535.54" }),
			want: map[string]string{"nvidia.com/cuda.driver.rev": "", "nvidia.com/cuda.driver-version.revision": "", "nvidia.com/cuda.driver.minor": "54"},
		},
		{
			name: "strange driver version", machine: with(hosting(h100(1)...), func(m *machine.Machine) { m.Driver = machine.Driver{Version: "next", CUDA: "?"} }),
			want: map[string]string{"nvidia.com/gpu.driver-version": "next", "nvidia.com/cuda.driver.major": "-", "nvidia.com/cuda.runtime.major": "-"},
			problems: []labels.Problem{
				{Key: "nvidia.com/cuda.driver-version.major", Reason: `driver version "next" is not X.Y or X.Y.Z`},
			},
		},
		{
			name: "a product too long for a label", machine: hosting(gpus(0, 1, "NVIDIA "+strings.Repeat("X ", 60), 1024, "", "")...),
			want: map[string]string{"nvidia.com/gpu.product": "NVIDIA-X-X-X-X-X-X-X-X-X-X-X-X-X-X-9217d3a8-X-X-X-X-X-X-X-X-X-X", "nvidia.com/gpu.family": "-"},
		},
		{
			name: "graphics GPU and nameless machine", machine: with(hosting(gpus(0, 1, "Tesla T4", 15360, "turing", "7.5")...), func(m *machine.Machine) {
				m.Product, m.PCI[0].Class = "", "0x030000"
			}),
			want: map[string]string{"nvidia.com/gpu.mode": "graphics", "nvidia.com/gpu.family": "turing", "nvidia.com/gpu.machine": "unknown"},
		},
		{
			name: "fabric not up", machine: with(hosting(h100(2)...), func(m *machine.Machine) {
				m.GPUs[0].Fabric = fabric("0-0", 0, machine.FabricNotStarted)
				m.GPUs[1].Fabric = fabric("0-0", 0, machine.FabricInProgress)
			}),
			want: map[string]string{"nvidia.com/gpu.clique": "-", "heddle.dev/nvlink.domain": "-"},
		},
		{
			name: "one GPU is not registered", machine: with(hosting(h100(3)...), func(m *machine.Machine) {
				m.GPUs[0].Fabric = fabric("0-0", 0, machine.FabricInProgress)
				m.GPUs[1].Fabric = fabric("1-2", 5, machine.FabricCompleted)
				m.GPUs[2].Fabric = fabric("0-0", 0, machine.FabricFailed)
			}),
			want: map[string]string{"nvidia.com/gpu.clique": "1-2.5", "heddle.dev/nvlink.domain": "1-2"},
		},
		{
			name: "a fabric of its own", machine: with(hosting(h100(1)...), func(m *machine.Machine) {
				m.GPUs[0].Fabric = fabric("00000000-0000-0000-0000-000000000000", 0, machine.FabricCompleted)
			}),
			want: map[string]string{"nvidia.com/gpu.clique": "-", "heddle.dev/nvlink.domain": "-"},
		},
		{
			name: "two cliques", machine: with(hosting(h100(2)...), func(m *machine.Machine) {
				m.GPUs[0].Fabric = fabric("1-2", 0, machine.FabricCompleted)
				m.GPUs[1].Fabric = fabric("1-2", 1, machine.FabricCompleted)
			}),
			want:     map[string]string{"nvidia.com/gpu.clique": "-"},
			problems: []labels.Problem{{Key: "nvidia.com/gpu.clique", Reason: "the GPUs are in different cliques"}},
		},
		{
			name: "MIG unnamed", machine: cut("1g.10gb"),
			want: map[string]string{"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "0", "nvidia.com/mig.strategy": "-", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
		},
		{
			name: "MIG single", machine: cut("1g.10gb", "1g.10gb"), config: "migStrategy: single",
			want: map[string]string{
				"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "1", "nvidia.com/mig.strategy": "single", "nvidia.com/gpu.memory": "9856",
				"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "nvidia.com/gpu.multiprocessors": "16", "nvidia.com/gpu.slices.gi": "1",
				"nvidia.com/gpu.engines.ofa": "0", "nvidia.com/gpu.family": "hopper",
			},
		},
		{
			name: "MIG single, two profiles", machine: cut("1g.10gb", "3g.40gb"), config: "migStrategy: single",
			want: map[string]string{
				"nvidia.com/gpu.count": "0", "nvidia.com/gpu.replicas": "0", "nvidia.com/gpu.memory": "0",
				"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID",
			},
			problems: []labels.Problem{{Key: "nvidia.com/mig.strategy", Reason: "strategy single: there are MIG devices of several profiles"}},
		},
		{
			name: "MIG single, half on", machine: with(cut("1g.10gb"), func(m *machine.Machine) { m.GPUs[1].MIG = machine.MIG{} }), config: "migStrategy: single",
			want:     map[string]string{"nvidia.com/gpu.count": "0"},
			problems: []labels.Problem{{Key: "nvidia.com/mig.strategy", Reason: "strategy single: MIG is on on some GPUs and off on others"}},
		},
		{
			name: "MIG mixed", machine: cut("1g.10gb", "1g.10gb+me"), config: "migStrategy: mixed",
			want: map[string]string{
				"nvidia.com/gpu.count": "2", "nvidia.com/mig-1g.10gb.count": "2", "nvidia.com/mig-1g.10gb.me.count": "2", "nvidia.com/mig-1g.10gb.replicas": "1",
				"nvidia.com/mig-1g.10gb.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "nvidia.com/mig-1g.10gb.engines.jpeg": "1", "nvidia.com/mig.strategy": "mixed",
			},
		},
		{
			name: "virtual GPU", machine: with(hosting(h100(1)...), func(m *machine.Machine) {
				m.GPUs[0].VGPU = &machine.VGPU{HostDriverVersion: "550.90", HostDriverBranch: "r550_00"}
			}),
			want: map[string]string{"nvidia.com/vgpu.present": "true", "nvidia.com/vgpu.host-driver-version": "550.90", "nvidia.com/vgpu.host-driver-branch": "r550_00"},
		},
		{
			name: "rules", machine: hosting(gpus(0, 8, "NVIDIA H800", 81559, "hopper", "9.0")...),
			config: `labels:
- {key: cloud.ebtech.com/gpu, value: "gpu.model + '_' + gpu.interconnect + '_' + gpu.memory", when: "gpu.count > 0"}
- {key: cloud.ebtech.com/cpu, value: cpu.codename}
- {key: ring, value: "'ff'", when: "node in ['n1', 'n2']"}
- {key: other, value: "'x'", when: "node == 'n9'"}
- {key: bad, value: gpu.product}
- {key: broken, value: "machine.hcas[0].name"}
`,
			want: map[string]string{
				"cloud.ebtech.com/gpu": "H800_PCIE_80GB", "cloud.ebtech.com/cpu": "amd-epyc-milan", "ring": "ff", "other": "-", "bad": "-", "broken": "-",
			},
			problems: []labels.Problem{
				{Key: "bad", Reason: "invalid label value: " + wellknown.CheckValue("NVIDIA H800").Error()},
				{Key: "broken", Reason: "value: evaluate: index out of bounds: 0"},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := section(t, tt.config)
			got := labels.Compute(tt.machine, c, host.Vendors())
			if diff := cmp.Diff(tt.want, labelsOf(got, slices.Collect(maps.Keys(tt.want)))); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.problems, got.Problems); diff != "" {
				t.Error(diff)
			}
			valid(t, c, got)
		})
	}
}

// valid checks what must hold for every result: keys and values that
// Kubernetes takes, and no key that Allowed does not list.
func valid(t *testing.T, c *config.NodeConfig, r labels.Result) {
	t.Helper()
	allowed := labels.Allowed(c)
	for key, value := range r.Labels {
		if err := wellknown.CheckKey(key); err != nil {
			t.Error(err)
		}
		if err := wellknown.CheckValue(value); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if !slices.ContainsFunc(allowed.Labels, func(pattern string) bool { return wellknown.Match(pattern, key) }) {
			t.Errorf("%s is not among the allowed labels", key)
		}
	}
	for _, taint := range r.Taints {
		if !slices.Contains(allowed.Taints, taint.Key) {
			t.Errorf("%s is not among the allowed taints", taint.Key)
		}
	}
}

func TestRDMA(t *testing.T) {
	port := func(state, layer string, rate float64) []machine.Port {
		return []machine.Port{{Number: 1, State: state, LinkLayer: layer, RateGbps: &rate}}
	}
	m := &machine.Machine{
		RDMA: machine.RDMA{NetnsMode: "shared"},
		HCAs: []machine.HCA{
			{Name: "mlx5_0", PCI: "0000:18:00.0", Role: machine.RoleFabric, Type: "MT4129", Ports: port("ACTIVE", machine.InfiniBand, 400)},
			{Name: "mlx5_1", PCI: "0000:2a:00.0", Role: machine.RoleFabric, Type: "MT4129", Ports: port("DOWN", machine.InfiniBand, 10)},
			{Name: "mlx5_2", PCI: "0000:2a:00.1", Role: machine.RoleFabric, Type: "MT4126", PhysFn: "0000:2a:00.0"},
			{Name: "mlx5_bond_0", PCI: "0000:5e:00.0", Role: machine.RoleFabric, Type: "MT4125", Ports: port("ACTIVE", machine.Ethernet, 200)},
		},
	}
	got := labels.Compute(m, section(t, "rdma: {roles: {storage: [mlx5_bond_*]}}"), host.Vendors())
	want := map[string]string{
		"heddle.dev/rdma.hca.count": "2", "heddle.dev/rdma.hca.link-layer": "InfiniBand", "heddle.dev/rdma.hca.rate": "400",
		"heddle.dev/rdma.hca.type": "MT4129", "heddle.dev/rdma.netns-mode": "shared",
	}
	if diff := cmp.Diff(labels.Result{Labels: want}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTaints(t *testing.T) {
	m := hosting(h100(1)...)
	product := corev1.Taint{Key: "nvidia.com/gpu.product", Value: "NVIDIA-H100-80GB-HBM3", Effect: "NoSchedule"}
	usage := corev1.Taint{Key: "heddle.dev/node.usage", Value: "training", Effect: "NoSchedule"}
	for _, tt := range []struct {
		name, config string
		machine      *machine.Machine
		want         []corev1.Taint
	}{
		{"none by default", "", m, nil},
		{"usage", "usage: training", m, []corev1.Taint{usage}},
		{"scheme", "usage: training\npreset: scheme", m, []corev1.Taint{product, usage}},
		{"no GPU to taint for", "preset: scheme", hosting(), nil},
		{"control plane, evicting", "controlPlane: true\ntaints: {effect: NoExecute}", m, []corev1.Taint{{Key: "heddle.dev/control-plane", Effect: "NoExecute"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, labels.Compute(tt.machine, section(t, tt.config), host.Vendors()).Taints); diff != "" {
				t.Error(diff)
			}
		})
	}
}
