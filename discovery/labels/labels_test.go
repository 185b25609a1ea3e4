package labels_test

import (
	"flag"
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
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

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

// TestLabels: the file has the number and the product of a machine's GPUs, what differs on it, and the configuration; and
// what differs from the labels of eight H100.
func TestLabels(t *testing.T) {
	machines := map[string]*machine.Machine{
		"0": hosting(), "8 H800": hosting(gpus(0, 8, "NVIDIA H800", 81559, "hopper", "9.0")...),
		"mixed": hosting(append(gpus(0, 3, "NVIDIA L40S", 46068, "ada-lovelace", "8.9"), gpus(3, 5, "NVIDIA H100 PCIe", 81559, "hopper", "9.0")...)...),
	}
	for _, n := range []int{1, 2, 3, 8} {
		machines[strconv.Itoa(n)+" H100"] = hosting(h100(n)...)
	}
	usual := labels.Compute(hosting(h100(8)...), section(t, ""), host.Vendors()).Labels
	golden.Rows(t, "testdata/labels.txt", *update, func(text string) string {
		text, configuration, _ := strings.Cut(text, "\nconfig\n")
		base, changes, _ := strings.Cut(text, "\n")
		m := *machines[base]
		if changes != "" {
			golden.Change(t, &m, strings.Split(changes, "\n")...)
		}
		c := section(t, configuration)
		got := labels.Compute(&m, c, host.Vendors())
		valid(t, c, got)
		var lines []string
		for key, value := range got.Labels {
			if was, had := usual[key]; !had || was != value {
				lines = append(lines, key+"="+value)
			}
		}
		for key := range usual {
			if _, has := got.Labels[key]; !has {
				lines = append(lines, "no "+key)
			}
		}
		slices.Sort(lines)
		for _, p := range got.Problems {
			lines = append(lines, "problem "+p.Key+": "+p.Reason)
		}
		return strings.Join(lines, "\n")
	})
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
