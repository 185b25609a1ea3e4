package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

func gpus(vendors ...string) *machine.Machine {
	m := &machine.Machine{}
	for i, vendor := range vendors {
		m.GPUs = append(m.GPUs, machine.GPU{UUID: fmt.Sprintf("GPU-%d", i), Vendor: vendor})
	}
	return m
}

// The names and the GPUs of a node with GPUs of one maker, of two, and of none that a
// driver shows.
func TestVendor(t *testing.T) {
	bus := func(vendors ...string) *machine.Machine {
		m := &machine.Machine{}
		for _, vendor := range vendors {
			m.PCI = append(m.PCI, machine.PCIFunction{Class: "0x038000", Vendor: vendor})
		}
		return m
	}
	for _, tt := range []struct {
		name, vendor string
		machine      *machine.Machine
		resource     string
		served       string
	}{
		{"NVIDIA's", "auto", gpus("", ""), "nvidia.com/gpu", "GPU-0 GPU-1 "},
		{"AMD's", "auto", gpus("amd.com", "amd.com"), "amd.com/gpu", "GPU-0 GPU-1 "},
		{"most of them name the rest", "auto", gpus("amd.com", "", "amd.com"), "amd.com/gpu", "GPU-0 GPU-1 GPU-2 "},
		{"of as many, NVIDIA's", "auto", gpus("amd.com", ""), "nvidia.com/gpu", "GPU-0 GPU-1 "},
		{"a graphics unit beside NVIDIA's", "nvidia.com", gpus("", "amd.com", "amd.com"), "nvidia.com/gpu", "GPU-0 "},
		{"a graphics unit alone", "nvidia.com", gpus("amd.com"), "nvidia.com/gpu", ""},
		{"named", "amd.com", gpus("", "", "amd.com"), "amd.com/gpu", "GPU-2 "},
		{"a name of one's own", "example.com", gpus("amd.com"), "example.com/gpu", "GPU-0 "},
		{"a name of one's own, two makers", "example.com", gpus("amd.com", "", "amd.com"), "example.com/gpu", "GPU-0 GPU-2 "},
		{"no driver", "auto", bus("0x1002"), "amd.com/gpu", ""},
		{"no driver, a graphics unit", "auto", bus("0x1002", "0x10de"), "nvidia.com/gpu", ""},
		{"nothing", "auto", gpus(), "nvidia.com/gpu", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			c.Domains.Vendor, c.Resources = tt.vendor, config.Resources{SGPU: "my.example/sgpu"}
			if err := c.Complete(); err != nil {
				t.Fatal(err)
			}
			c = c.For(tt.machine)
			if c.Resources.GPU != tt.resource || c.Resources.SGPU != "my.example/sgpu" {
				t.Errorf("resources %+v, want %s", c.Resources, tt.resource)
			}
			served := ""
			for _, g := range c.Serving(tt.machine).GPUs {
				served += g.UUID + " "
			}
			if served != tt.served {
				t.Errorf("serves %q, want %q", served, tt.served)
			}
			for i := range tt.machine.GPUs {
				g := &tt.machine.GPUs[i]
				if reason := c.NotServed(tt.machine, g); (reason == "") != strings.Contains(tt.served, g.UUID) {
					t.Errorf("%s: %q", g.UUID, reason)
				}
			}
		})
	}
}

func TestExclude(t *testing.T) {
	m := gpus("", "", "", "amd.com")
	for i, product := range []string{"NVIDIA A100-SXM4-80GB", "NVIDIA DGX Display", "NVIDIA T400 4GB", "Radeon Pro WX 3200"} {
		m.GPUs[i].Product, m.GPUs[i].PCI = product, fmt.Sprintf("0000:%d1:00.0", i)
		class, memory := "0x030000", int64(4096)
		if i == 0 {
			class, memory = "0x030200", 81920
		}
		m.GPUs[i].MemoryMiB = memory
		m.PCI = append(m.PCI, machine.PCIFunction{Address: m.GPUs[i].PCI, Class: class})
	}
	for _, tt := range []struct {
		name    string
		exclude []config.Glob
		want    string
	}{
		{"by default GPUs for a screen", config.Default().GPUs.Exclude, "GPU-0"},
		{"none", []config.Glob{}, "GPU-0 GPU-1 GPU-2"},
		{"a UUID", []config.Glob{"GPU-0"}, "GPU-1 GPU-2"},
		{"PCI addresses", []config.Glob{"0000:[01]1:00.0"}, "GPU-2"},
		{"products", []config.Glob{"*T400*", "*A100*"}, "GPU-1"},
	} {
		c := config.Default()
		c.GPUs.Exclude = tt.exclude
		var served []string
		for _, g := range c.Serving(m).GPUs {
			served = append(served, g.UUID)
		}
		if got := strings.Join(served, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	// Cards of one kind are for compute, also in a workstation.
	m = gpus("", "")
	for i := range m.GPUs {
		m.GPUs[i].PCI, m.GPUs[i].MemoryMiB = fmt.Sprintf("0000:%d1:00.0", i), int64(24<<10>>i)
		m.PCI = append(m.PCI, machine.PCIFunction{Address: m.GPUs[i].PCI, Class: "0x030000"})
	}
	c := config.Default()
	if got := c.Serving(m); len(got.GPUs) != 2 {
		t.Errorf("%d GPUs of two", len(got.GPUs))
	}
	// The product that NVIDIA's library passes over is for a screen, whatever stands beside it.
	m.GPUs[1].Product = "NVIDIA DGX Display"
	if got := c.Serving(m); len(got.GPUs) != 1 {
		t.Errorf("%d GPUs beside a display GPU of DGX", len(got.GPUs))
	}
}

func TestMemoryOfAGPUThatReportsNone(t *testing.T) {
	m, c := gpus("", ""), config.Default()
	m.GPUs[1].MemoryMiB = 81920
	if c.SGPU.Slots(&m.GPUs[0]) != 1 || c.SGPU.Slots(&m.GPUs[1]) != 16 {
		t.Error("a GPU without a known memory takes one container")
	}
	c.SGPU.MemoryMiB = 122880
	if got := c.Serving(m).GPUs; got[0].MemoryMiB != 122880 || got[1].MemoryMiB != 81920 || m.GPUs[0].MemoryMiB != 0 {
		t.Errorf("%+v", got)
	}
}

// TestTwoMakers: with auto each GPU has its maker's name; only those of the maker of
// most are shared. A name of one's own would mix them.
func TestTwoMakers(t *testing.T) {
	m := gpus("", "amd.com", "")
	c := config.Default()
	c.Domains.Vendor, c.Mode, c.Resources = "auto", config.ModeSGPU, config.Resources{}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	on := c.For(m)
	for i, want := range []string{"nvidia.com/gpu true", "amd.com/gpu false", "nvidia.com/gpu true"} {
		g := &m.GPUs[i]
		if got := fmt.Sprint(on.GPUResource(g), " ", on.Shares(g)); got != want {
			t.Errorf("GPU %d: %s, want %s", i, got, want)
		}
	}
	// Its driver is away: what the Node carries of it stays its own.
	m.GPUs, m.PCI = m.GPUs[:1], []machine.PCIFunction{{Class: "0x038000", Vendor: "0x1002"}}
	if away := c.For(m); len(away.Others) != 1 || away.Others[0].Domains.Vendor != "amd.com" {
		t.Errorf("without a driver: %v", away.Others)
	}
	m = gpus("", "amd.com", "")
	g := machine.GPU{Vendor: "amd.com", MIG: machine.MIG{Enabled: true, Mode: "CPX"}}
	if got := on.InstanceResource(&g, "cpx_nps4"); got != "amd.com/gpu" {
		t.Errorf("a partition is %s", got)
	}
	c.Resources.GPU = "example.com/gpu"
	if on = c.For(m); len(on.Others) > 0 || on.NotServed(m, &m.GPUs[1]) == "" {
		t.Errorf("under one name: %v", on.Others)
	}
}

// A policy, and an uninstall, look at the names of all makers.
func TestSectionsOfAllVendors(t *testing.T) {
	c := config.Default()
	c.Domains.Vendor, c.Resources = "auto", config.Resources{}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, section := range config.New(c).Sections() {
		names = append(names, section.Resources.GPU)
	}
	if got := fmt.Sprint(names); got != "[nvidia.com/gpu amd.com/gpu metax-tech.com/gpu]" {
		t.Errorf("sections of %s", got)
	}
}

// Where only the Node's labels are known, they are of its maker.
func TestVendorByLabels(t *testing.T) {
	c := config.Default()
	c.Domains.Vendor, c.Resources = "auto", config.Resources{}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	for want, labels := range map[string]map[string]string{
		"nvidia.com/gpu": {"nvidia.com/gpu.product": "NVIDIA-H100"}, "amd.com/gpu": {"amd.com/gpu.product": "AMD-Instinct-MI210"},
	} {
		if got := c.ForLabels(labels).Resources.GPU; got != want {
			t.Errorf("%v: %s", labels, got)
		}
	}
	if got := c.ForLabels(nil).Resources.GPU; got != "nvidia.com/gpu" {
		t.Errorf("without labels: %s", got)
	}
}

// TestDetectHAMi: HAMi's handshake enables its protocol where it counts the node's shares by default, and the
// configuration leaves that open.
func TestDetectHAMi(t *testing.T) {
	handshake := map[string]string{"hami.io/node-handshake-xpu": "Requesting_2026-11-22 15:17:17"}
	for _, tt := range []struct {
		name, vendor, text string
		node               map[string]string
		want               config.HAMi
	}{
		{"HAMi is there", wellknown.MetaX, "mode: sgpu", handshake, config.HAMiOn},
		{"it is not", wellknown.MetaX, "mode: sgpu", map[string]string{"a": "b"}, config.HAMiAuto},
		{"it counts other names", "nvidia.com", "mode: sgpu", handshake, config.HAMiAuto},
		{"it must not", wellknown.MetaX, "sgpu: {hami: false}", handshake, "false"},
		{"it must", "nvidia.com", "sgpu: {hami: true}", nil, config.HAMiOn},
		{"it would take too much for one container", wellknown.MetaX, "sgpu: {memoryOvercommit: 2}", handshake, config.HAMiAuto},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := parse(t, tt.text, "").Resolve("a", nil).ForVendor(tt.vendor)
			if c.DetectHAMi(tt.node); c.SGPU.HAMi != tt.want {
				t.Errorf("hami is %s, want %s", c.SGPU.HAMi, tt.want)
			}
		})
	}
}
