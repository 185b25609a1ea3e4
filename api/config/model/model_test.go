package model_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

func TestNameAndMemory(t *testing.T) {
	for _, tt := range []struct {
		product string
		mib     int64
		name    string
		memory  string
	}{
		{"NVIDIA H100 80GB HBM3", 81559, "H100", "80GB"},
		{"NVIDIA H100 PCIe", 81559, "H100", "80GB"},
		{"NVIDIA H100 NVL", 95830, "H100", "94GB"},
		{"NVIDIA H800", 81559, "H800", "80GB"},
		{"NVIDIA H20", 97871, "H20", "96GB"},
		{"NVIDIA H20-3e", 143771, "H20", "141GB"},
		{"NVIDIA H200", 143771, "H200", "141GB"},
		{"NVIDIA A100-SXM4-80GB", 81920, "A100", "80GB"},
		{"NVIDIA A100 80GB PCIe", 81251, "A100", "80GB"},
		{"NVIDIA A100-SXM4-40GB", 40960, "A100", "40GB"},
		{"A100-SXM4-40GB", 40536, "A100", "40GB"},
		{"NVIDIA A800-SXM4-80GB", 81251, "A800", "80GB"},
		{"NVIDIA A10G", 23028, "A10G", "24GB"},
		{"NVIDIA L4", 23034, "L4", "24GB"},
		{"NVIDIA L40S", 46068, "L40S", "48GB"},
		{"NVIDIA GeForce RTX 4090", 24564, "RTX-4090", "24GB"},
		{"NVIDIA GeForce RTX 3080 Laptop GPU", 16384, "RTX-3080", "16GB"},
		{"NVIDIA GeForce RTX 4060 Ti", 16380, "RTX-4060-Ti", "16GB"},
		{"Tesla T4", 15360, "T4", "16GB"},
		{"Tesla V100-SXM2-32GB", 32768, "V100", "32GB"},
		{"NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada", "48GB"},
		{"NVIDIA RTX A6000", 49140, "RTX-A6000", "48GB"},
		{"Quadro RTX 6000", 24220, "RTX-6000", "24GB"},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX-PRO-6000", "96GB"},
		{"NVIDIA TITAN RTX", 24220, "TITAN-RTX", "24GB"},
		{"NVIDIA GH200 480GB", 97871, "GH200", "96GB"},
		{"NVIDIA GB200", 189471, "GB200", "186GB"},
		{"NVIDIA B200", 183359, "B200", "180GB"},
		{"NVIDIA B300 SXM6 AC", 275040, "B300", "288GB"},
		{"NVIDIA A40-48Q", 49152, "A40", "48GB"},
		{"AMD Instinct MI300X", 196592, "MI300X", "192GB"},
		{"NVIDIA Graphics Device", 5, "Graphics-Device", "1GB"},
		{"NVIDIA", 0, "NVIDIA", ""},
		{"NVIDIA X900 640GB", 0, "X900", "640GB"},
		{"NVIDIA X900", 614400, "X900", "600GB"},
		{"", 0, "", ""},
		{"  ", -1, "", ""},
		{"NVIDIA -GB", 8192, "GB", "8GB"},
	} {
		t.Run(tt.product, func(t *testing.T) {
			if got := model.Name(tt.product); got != tt.name {
				t.Errorf("Name = %q, want %q", got, tt.name)
			}
			if got := model.Memory(tt.product, tt.mib); got != tt.memory {
				t.Errorf("Memory(%d) = %q, want %q", tt.mib, got, tt.memory)
			}
		})
	}
}

func TestGroups(t *testing.T) {
	gpu := func(uuid, product string) machine.GPU { return machine.GPU{UUID: uuid, Product: product} }
	for _, tt := range []struct {
		name string
		gpus []machine.GPU
		want []model.Group
	}{
		{name: "none"},
		{
			name: "most numerous first",
			gpus: []machine.GPU{gpu("1", "L40S"), gpu("2", "H100"), gpu("3", "H100")},
			want: []model.Group{
				{Product: "H100", GPUs: []machine.GPU{gpu("2", "H100"), gpu("3", "H100")}},
				{Product: "L40S", GPUs: []machine.GPU{gpu("1", "L40S")}},
			},
		},
		{
			name: "ties by name",
			gpus: []machine.GPU{gpu("1", "L40S"), gpu("2", "H100")},
			want: []model.Group{
				{Product: "H100", GPUs: []machine.GPU{gpu("2", "H100")}},
				{Product: "L40S", GPUs: []machine.GPU{gpu("1", "L40S")}},
			},
		},
		{
			name: "a lost GPU counts with its siblings",
			gpus: []machine.GPU{gpu("1", ""), gpu("2", "H100")},
			want: []model.Group{{Product: "H100", GPUs: []machine.GPU{gpu("2", "H100"), gpu("1", "")}}},
		},
		{
			name: "and with no group where its siblings differ",
			gpus: []machine.GPU{gpu("1", ""), gpu("2", "H100"), gpu("3", "L40S")},
			want: []model.Group{
				{Product: "H100", GPUs: []machine.GPU{gpu("2", "H100")}},
				{Product: "L40S", GPUs: []machine.GPU{gpu("3", "L40S")}},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, model.Groups(tt.gpus)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestGroupValuesDoNotDependOnOrder(t *testing.T) {
	gpus := []machine.GPU{
		{Product: "A", MemoryMiB: 10, Architecture: "hopper", ComputeCapability: "9.0"},
		{Product: "A", MemoryMiB: 20, Architecture: "hopper", ComputeCapability: "9.1"},
		{Product: "A"},
	}
	for range 100 {
		rand.Shuffle(len(gpus), func(i, j int) { gpus[i], gpus[j] = gpus[j], gpus[i] })
		g := model.Group{Product: "A", GPUs: gpus}
		if g.MemoryMiB() != 20 || g.Architecture() != "hopper" || g.ComputeCapability() != "9.1" || g.NVLink() {
			t.Fatalf("got %d, %s, %s, %t", g.MemoryMiB(), g.Architecture(), g.ComputeCapability(), g.NVLink())
		}
	}
}

func TestNVLink(t *testing.T) {
	link := []machine.NVLink{{Peer: machine.PeerNVSwitch, Links: 18}}
	for _, tt := range []struct {
		name  string
		group model.Group
		want  bool
	}{
		{"none", model.Group{Product: "NVIDIA L40S", GPUs: make([]machine.GPU, 2)}, false},
		{"one GPU is off", model.Group{Product: "NVIDIA B200", GPUs: []machine.GPU{{}, {NVLinks: link}}}, true},
		{"fabric not up", model.Group{Product: "NVIDIA GB200", GPUs: []machine.GPU{{Fabric: &machine.Fabric{}}}}, true},
		{"by form factor", model.Group{Product: "NVIDIA A100-SXM4-80GB", GPUs: make([]machine.GPU, 1)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.group.NVLink(); got != tt.want {
				t.Errorf("NVLink = %t", got)
			}
		})
	}
}

func FuzzName(f *testing.F) {
	f.Add("NVIDIA H100 80GB HBM3", int64(81559))
	f.Add("-- 0GB \x00é", int64(-5))
	f.Fuzz(func(t *testing.T, product string, mib int64) {
		for _, v := range []string{model.Name(product), model.Memory(product, mib)} {
			if err := wellknown.CheckValue(v); err != nil {
				t.Errorf("%q, %d: %v", product, mib, err)
			}
		}
	})
}

// Of an HCA with a port of each kind (ConnectX-3 VPI), the one with a link counts.
func TestLinkLayerOfTheActivePort(t *testing.T) {
	m := &machine.Machine{HCAs: []machine.HCA{{Name: "mlx4_0", Role: machine.RoleFabric, Ports: []machine.Port{
		{Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortDown, RateGbps: new(10.0)},
		{Number: 2, LinkLayer: machine.Ethernet, State: machine.PortActive, RateGbps: new(40.0)},
	}}}}
	if got := model.RDMAOf(m); got.LinkLayer != machine.Ethernet || got.RateGbps != 40 || got.Count != 1 {
		t.Errorf("%+v", got)
	}
}
