package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/machine"
)

func parse(t *testing.T, cluster, nodes string) *config.Config {
	t.Helper()
	c, err := config.Parse(files(cluster, nodes), &rule.CEL{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func files(cluster, nodes string) map[string][]byte {
	return map[string][]byte{
		config.KeyVersion: []byte("v1"), config.KeyCluster: []byte(cluster), config.KeyNodes: []byte(nodes),
	}
}

func ignoreRules() cmp.Option { return cmpopts.IgnoreTypes([]config.Rule(nil)) }

func TestDefaults(t *testing.T) {
	for _, c := range []*config.Config{parse(t, "", ""), parse(t, "# nothing\n", "[]"), config.Builtin()} {
		got := c.Resolve("n", nil)
		if got.Domains.Vendor != "auto" {
			t.Errorf("domains.vendor is %q, want auto", got.Domains.Vendor)
		}
		if diff := cmp.Diff(config.Default(), got.ForVendor("nvidia.com"), ignoreRules()); diff != "" {
			t.Error(diff)
		}
	}
	d := config.Default()
	if d.Mode != config.ModeNative || d.SGPU.SlotsPerGPU != 16 || d.Resources.GPU != "nvidia.com/gpu" ||
		d.Taints.GPUProduct || d.Taints.Effect != config.NoSchedule {
		t.Errorf("defaults are not those of the design: %+v", d)
	}
}

// The layout that operators of such suites know.
func TestDocumentedExample(t *testing.T) {
	c := parse(t, `mode: "native"`, "- nodeName: \"sample-node1\"\n  mode: \"sgpu\"\n- nodeSelector: {pool: inference}\n  usage: inference\n")
	for _, tt := range []struct {
		node   string
		labels map[string]string
		mode   config.Mode
		usage  config.Usage
	}{
		{"sample-node1", nil, config.ModeSGPU, ""},
		{"sample-node1", map[string]string{"pool": "inference"}, config.ModeSGPU, ""},
		{"sample-node2", map[string]string{"pool": "inference"}, config.ModeNative, "inference"},
		{"sample-node2", map[string]string{"pool": "training"}, config.ModeNative, ""},
	} {
		got := c.Resolve(tt.node, tt.labels)
		if got.Mode != tt.mode || got.Usage != tt.usage {
			t.Errorf("%s %v: mode %s, usage %s", tt.node, tt.labels, got.Mode, got.Usage)
		}
	}
}

func TestMerge(t *testing.T) {
	const cluster = `
domains: {vendor: example.com, company: corp.example.com}
sgpu: {slotsPerGPU: 8, enforce: {memory: mps}}
taints: {effect: NoExecute}
resources: {gpu: example.com/accelerator}
labels: [{key: a, value: "'1'"}, {key: b, value: "'2'"}]
rdma:
  resources: [{name: rdma/a}, {name: rdma/b, sharers: 2, selectors: {vendors: [15b3], deviceIDs: [1021]}}]
`
	const nodes = `
- nodeName: n-*
  nodeSelector: {zone: "1"}
  preset: scheme
  domains: {card: dcu}
  sgpu: {enforce: {compute: mps}, gpus: [0, GPU-1]}
  labels: [{key: c, value: node}]
  rdma: {resources: [], roles: {storage: [mlx5_bond_*]}}
`
	c := parse(t, cluster, nodes)
	got := c.Resolve("n-1", map[string]string{"zone": "1"})
	want := config.Default()
	want.Preset = config.PresetScheme
	want.Domains.Vendor, want.Domains.Company, want.Domains.GPU = "example.com", "corp.example.com", "dcu"
	want.SGPU.SlotsPerGPU = 8
	want.SGPU.GPUs = []config.GPURef{"0", "GPU-1"}
	want.SGPU.Enforce.Memory, want.SGPU.Enforce.Compute = config.EnforceMPS, config.EnforceMPS
	want.Taints = config.Taints{GPUProduct: true, Effect: config.NoExecute}
	want.Resources = config.Resources{
		GPU: "example.com/accelerator", SGPU: "example.com/sgpu", VCore: "example.com/vcore", VMemory: "example.com/vmemory",
		VMemoryUnit: config.GiB,
	}
	want.Labels = []config.LabelRule{{Key: "c", Value: "node"}}
	want.RDMA = config.RDMA{Resources: []config.RDMAResource{}, Roles: config.Roles{Storage: []config.Glob{"mlx5_bond_*"}}}
	if diff := cmp.Diff(want, got, ignoreRules()); diff != "" {
		t.Error(diff)
	}
	// The cluster's own section is untouched by its override.
	base := c.Resolve("other", nil)
	fabric := config.Selectors{Roles: []machine.Role{"fabric"}}
	mlx := config.Selectors{Vendors: []config.HexID{"15b3"}, DeviceIDs: []config.HexID{"1021"}}
	wantRDMA := config.RDMA{Resources: []config.RDMAResource{
		{Name: "rdma/a", Sharers: 64, Count: config.CountDistinct, Selectors: fabric},
		{Name: "rdma/b", Sharers: 2, Count: config.CountDistinct, Selectors: mlx},
	}}
	if diff := cmp.Diff(wantRDMA, base.RDMA); diff != "" {
		t.Error(diff)
	}
	if len(base.Labels) != 2 || len(base.Rules) != 2 || base.Taints.GPUProduct || base.SGPU.GPUs != nil {
		t.Errorf("cluster's section: %+v", base)
	}
}

// A share may have the name that GPUs have elsewhere: those are exclusive by name then.
func TestShareNamedGPU(t *testing.T) {
	c := parse(t, "resources: {sgpu: nvidia.com/gpu}", "").Resolve("n", nil)
	if c.Resources.GPU != "nvidia.com/gpu.exclusive" || !c.AdvertisesShares() {
		t.Errorf("resources %+v, counted %v", c.Resources, c.AdvertisesShares())
	}
	for _, text := range []string{"vmemoryUnit: MiB", "vmemoryPercentage: nvidia.com/p"} {
		if c := parse(t, "resources: {"+text+"}", "").Resolve("n", nil); c.AdvertisesShares() {
			t.Errorf("with %s the kubelet counts memory", text)
		}
	}
}

func TestHealth(t *testing.T) {
	h := parse(t, "health: {disable: [rate], ignoreXIDs: [94, 63], downAfter: 0s}", "").Resolve("n", nil).Health
	if h.Checks(config.CheckRate) || !h.Checks(config.CheckHCAs) {
		t.Errorf("the disabled check is on, or another off: %v", h.Disable)
	}
	all := config.Health{Disable: []config.HealthCheck{config.CheckAll}}
	if all.Checks(config.CheckCodes) {
		t.Error("all does not disable xids")
	}
	if !slices.Equal(h.IgnoreXIDs, []int{94, 63}) {
		t.Errorf("XIDs %v", h.IgnoreXIDs)
	}
	if h.DownAfter != 0 || h.UpAfter != 30*time.Second {
		t.Errorf("down after %s, up after %s", h.DownAfter, h.UpAfter)
	}
}

func TestTopologyLevels(t *testing.T) {
	c := parse(t, `
topology:
  mode: custom
  levels:
  - {kind: hall, by: spine}
  - {kind: rack, by: path}
  - {kind: pair, by: block, nodes: 2}
`, "- {nodeName: a, usage: hybrid}")
	want := []config.TopologyLevel{
		{Kind: "hall", By: "spine"},
		{Kind: "rack", By: "path"},
		{Kind: "pair", By: config.LevelByBlock, Nodes: 2},
	}
	for _, node := range []string{"a", "b"} {
		if diff := cmp.Diff(want, c.Resolve(node, nil).Topology.Levels); diff != "" {
			t.Errorf("levels of node %s (-want +got):\n%s", node, diff)
		}
	}
}

func TestPresetYieldsToWhatIsWritten(t *testing.T) {
	c := parse(t, "preset: scheme\ntaints: {gpuProduct: false}", "")
	if c.Cluster.Taints.GPUProduct {
		t.Error("the preset overrode what is written")
	}
	if !parse(t, "preset: scheme", "- {nodeName: a, usage: hybrid}").Resolve("a", nil).Taints.GPUProduct {
		t.Error("the cluster's preset does not hold in an override")
	}
}

func TestFiles(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string][]byte
		want  string
	}{
		{"unknown", map[string][]byte{"version": []byte("v1"), "node-config": nil}, "node-config: unknown key; supported are version, cluster-config and nodes-config"},
		{"no version", map[string][]byte{"cluster-config": nil}, "version: is missing: write v1"},
		{"other version", map[string][]byte{"version": []byte("v2\n")}, `version:1: unsupported version "v2\n"`},
		{"large", map[string][]byte{"version": []byte("v1"), "cluster-config": make([]byte, config.MaxFile+1)}, "cluster-config: more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := config.Parse(tt.files, &rule.CEL{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	c, err := config.Load(dir, &rule.CEL{})
	if err != nil || c.Cluster.Mode != config.ModeNative {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := config.Load(filepath.Join(dir, "none"), &rule.CEL{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	write(t, dir, "version", "v1\n")
	write(t, dir, "cluster-config", "mode: sgpu\n")
	write(t, dir, ".swp", "x")
	if c, err = config.Load(dir, &rule.CEL{}); err != nil || c.Cluster.Mode != config.ModeSGPU {
		t.Errorf("got %+v, %v", c, err)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A program that writes no labels takes rules as they are, but for their keys.
func TestUncompiled(t *testing.T) {
	wrong := files("labels: [{key: ring, value: \"'\"}]", "")
	if _, err := config.Parse(wrong, &rule.CEL{}); err == nil || !strings.Contains(err.Error(), "labels[0].value: ") {
		t.Errorf("with CEL: %v", err)
	}
	if c, err := config.Parse(wrong, config.Uncompiled{}); err != nil || len(c.Cluster.Labels) != 1 || c.Cluster.Rules != nil {
		t.Errorf("without: %v", err)
	}
	key := files("labels: [{key: kubernetes.io/hostname, value: \"'a'\"}]", "")
	if _, err := config.Parse(key, config.Uncompiled{}); err == nil || !strings.Contains(err.Error(), "labels[0].key: ") {
		t.Errorf("a key of the kubelet's: %v", err)
	}
}

func TestSelect(t *testing.T) {
	fabric := machine.HCA{
		Name: "mlx5_0", PCI: "0000:18:00.0", Vendor: "0x15b3", Device: "0x1021", Driver: "mlx5_core", Role: machine.RoleFabric,
		Ports: []machine.Port{{Number: 1, LinkLayer: machine.InfiniBand, Netdevs: []machine.Netdev{{Name: "ibs1", Type: "infiniband"}}}},
	}
	vf := machine.HCA{Name: "mlx5_9", PCI: "0000:18:00.2", PhysFn: "0000:18:00.0", Vendor: "0x15b3", Role: machine.RoleFabric}
	roce := machine.HCA{PCI: "0000:2a:00.0", Role: machine.RoleFabric, Ports: []machine.Port{{LinkLayer: machine.Ethernet}}}
	nvswitch := machine.HCA{Name: "mlx5_4", PCI: "0000:07:00.0", Vendor: "0x15b3", Role: machine.RoleNVSwitch}
	m := &machine.Machine{HCAs: []machine.HCA{fabric, vf, nvswitch}}
	for _, tt := range []struct {
		name, selectors string
		hca             *machine.HCA
		reason          string
	}{
		{"vendor", "{vendors: [0x15B3], deviceIDs: [1021], drivers: [mlx5_*]}", &fabric, ""},
		{"other vendor", "{vendors: [15b4, 8086]}", &fabric, "vendors: 0x15b3 is not among 15b4, 8086"},
		{"interface", "{ifNames: ['ib*'], linkTypes: [infiniband]}", &fabric, ""},
		{"port without a netdev", "{pciAddresses: [0000:2a:00.0], linkTypes: [ether]}", &roce, ""},
		{"other port without a netdev", "{linkTypes: [infiniband]}", &roce, "linkTypes: ether is not among infiniband"},
		{"other link", "{linkTypes: [ether]}", &fabric, "linkTypes: infiniband is not among ether"},
		{"no netdev", "{ifNames: [eth0]}", &vf, "it is a virtual function, and neither pciAddresses nor pfNames is given"},
		{"address", "{pciAddresses: ['0000:18:00.?']}", &vf, ""},
		{"by physical function", "{pfNames: [ibs1]}", &vf, ""},
		{"not a virtual function", "{pfNames: [ibs1]}", &fabric, "pfNames: nothing is not among ibs1"},
		{"NVSwitch", "{vendors: [15b3]}", &nvswitch, "it is a function of an NVSwitch"},
		{"default", "{}", &fabric, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := parse(t, "rdma: {resources: [{name: rdma/a, selectors: "+tt.selectors+"}]}", "")
			ok, reason := c.Cluster.RDMA.Select(m, &c.Cluster.RDMA.Resources[0], tt.hca)
			if reason != tt.reason || ok != (tt.reason == "") {
				t.Errorf("got %t, %q", ok, reason)
			}
		})
	}
}

// A physical function is in no resource beside its virtual ones but by its address.
func TestSelectBesideVirtualFunctions(t *testing.T) {
	hca := func(name, pci, physFn string) machine.HCA {
		return machine.HCA{Name: name, PCI: pci, PhysFn: physFn, Role: machine.RoleFabric}
	}
	m := &machine.Machine{HCAs: []machine.HCA{
		hca("mlx5_0", "0000:18:00.0", ""), hca("mlx5_1", "0000:3f:00.0", ""), hca("mlx5_8", "0000:18:00.2", "0000:18:00.0"),
	}}
	const vfs = ", {name: rdma/vf, sharers: 1, selectors: {pfNames: [mlx5_0]}}"
	for _, tt := range []struct {
		name, resources string
		want            []string
	}{
		{"no other resource has the virtual ones", "{name: rdma/a}", []string{"mlx5_0", "mlx5_1"}},
		{"another resource has them", "{name: rdma/a}" + vfs, []string{"mlx5_1"}},
		{"this one has them", "{name: rdma/a, selectors: {pciAddresses: ['0000:18:*']}}", []string{"mlx5_8"}},
		{"by its address", "{name: rdma/a, selectors: {pciAddresses: ['0000:18:00.0']}}" + vfs, []string{"mlx5_0"}},
		{"by a pattern", "{name: rdma/a, selectors: {pciAddresses: ['*:18:00.0']}}" + vfs, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rdma := &parse(t, "rdma: {resources: ["+tt.resources+"]}", "").Cluster.RDMA
			var got []string
			for i := range m.HCAs {
				selected, reason := rdma.Select(m, &rdma.Resources[0], &m.HCAs[i])
				if selected {
					got = append(got, m.HCAs[i].Name)
				} else if reason == "" {
					t.Errorf("%s is not selected, without a reason", m.HCAs[i].Name)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("selected %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWithRoles(t *testing.T) {
	m := &machine.Machine{HCAs: []machine.HCA{
		{Name: "mlx5_0", PCI: "0000:18:00.0", Role: machine.RoleFabric},
		{Name: "mlx5_bond_0", PCI: "0000:5e:00.0", Role: machine.RoleFabric},
		{Name: "rxe0", Role: machine.RoleVirtual},
	}}
	plain := config.Default()
	if plain.WithRoles(m) != m {
		t.Error("nothing to correct, and yet a copy")
	}
	c := parse(t, "rdma: {roles: {fabric: [rxe*], storage: ['0000:5e:*'], management: [mlx5_bond_0]}}", "").Cluster
	got := c.WithRoles(m)
	want := []machine.Role{machine.RoleFabric, machine.RoleStorage, machine.RoleFabric}
	for i, role := range want {
		if got.HCAs[i].Role != role {
			t.Errorf("%s: %s, want %s", got.HCAs[i].Name, got.HCAs[i].Role, role)
		}
	}
	if m.HCAs[1].Role != machine.RoleFabric {
		t.Error("the machine was changed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("mode: native", "- nodeName: a\n  mode: sgpu\n")
	f.Add("labels: [{key: a, value: \"'b'\", when: 'gpu.count > 0'}]", "- {nodeSelector: {a: b}, rdma: {resources: [{name: a/b}]}}")
	f.Add("a: &a [*a]\n<<: *a", "[[[[{{{")
	f.Fuzz(func(t *testing.T, cluster, nodes string) {
		c, err := config.Parse(files(cluster, nodes), &rule.CEL{})
		if err != nil {
			return
		}
		for _, section := range c.Sections() {
			if err := section.Complete(); err != nil {
				t.Errorf("accepted, and yet: %v", err)
			}
		}
	})
}
