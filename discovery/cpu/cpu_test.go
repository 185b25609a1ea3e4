package cpu

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

func TestCodenameX86(t *testing.T) {
	for _, tt := range []struct {
		vendor                  string
		family, model, stepping int
		name, want              string
	}{
		{"AuthenticAMD", 0x17, 0x01, 2, "AMD EPYC 7601 32-Core Processor", "amd-epyc-naples"},
		{"AuthenticAMD", 0x17, 0x31, 0, "AMD EPYC 7742 64-Core Processor", "amd-epyc-rome"},
		{"AuthenticAMD", 0x19, 0x01, 1, "AMD EPYC 7763 64-Core Processor", "amd-epyc-milan"},
		{"AuthenticAMD", 0x19, 0x11, 1, "AMD EPYC 9654 96-Core Processor", "amd-epyc-genoa"},
		{"AuthenticAMD", 0x19, 0xa0, 2, "AMD EPYC 9754 128-Core Processor", "amd-epyc-bergamo"},
		{"AuthenticAMD", 0x19, 0xa0, 2, "AMD EPYC 8324P 32-Core Processor", "amd-epyc-siena"},
		{"AuthenticAMD", 0x19, 0xa0, 2, "AMD EPYC Processor", "amd-epyc-25-160"},
		{"AuthenticAMD", 0x17, 0x01, 2, "AMD EPYC 3251 8-Core Processor", "amd-epyc-snowyowl"},
		{"AuthenticAMD", 0x17, 0x08, 2, "", "amd-23-8"},
		{"AuthenticAMD", 0x19, 0x11, 0, "AMD EPYC-Genoa Processor", "amd-epyc-genoa"},
		{"AuthenticAMD", 0x19, 0x61, 2, "AMD EPYC 4464P 12-Core Processor", "amd-epyc-raphael"},
		{"AuthenticAMD", 0x1a, 0x44, 0, "AMD EPYC 4565P 16-Core Processor", "amd-epyc-graniteridge"},
		{"AuthenticAMD", 0x1a, 0x02, 1, "AMD EPYC 9575F 64-Core Processor", "amd-epyc-turin"},
		{"AuthenticAMD", 0x1a, 0x11, 0, "AMD EPYC 9965 192-Core Processor", "amd-epyc-turin-dense"},
		{"AuthenticAMD", 0x19, 0x01, 1, "", "amd-epyc-milan"},
		{"AuthenticAMD", 0x19, 0x61, 2, "AMD Ryzen 9 7950X 16-Core Processor", "amd-ryzen-25-97"},
		{"AuthenticAMD", 0x17, 0x31, 0, "AMD Ryzen Threadripper 3990X 64-Core Processor", "amd-threadripper-23-49"},
		{"AuthenticAMD", 0x1b, 0x01, 0, "AMD EPYC 9999", "amd-epyc-27-1"},
		{"GenuineIntel", 6, 85, 4, "Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", "intel-xeon-skylake"},
		{"GenuineIntel", 6, 85, 7, "Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", "intel-xeon-cascadelake"},
		{"GenuineIntel", 6, 85, 11, "Intel(R) Xeon(R) Platinum 8380HL CPU @ 2.90GHz", "intel-xeon-cooperlake"},
		{"GenuineIntel", 6, 85, 5, "Intel(R) Xeon(R) Processor", "intel-xeon-cascadelake"},
		{"GenuineIntel", 19, 1, 0, "Intel(R) Xeon(R)", "intel-xeon-diamondrapids"},
		{"GenuineIntel", 6, 106, 6, "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", "intel-xeon-icelake"},
		{"GenuineIntel", 6, 143, 8, "Intel(R) Xeon(R) Platinum 8480C", "intel-xeon-sapphirerapids"},
		{"GenuineIntel", 6, 207, 2, "INTEL(R) XEON(R) PLATINUM 8558", "intel-xeon-emeraldrapids"},
		{"GenuineIntel", 6, 173, 1, "Intel(R) Xeon(R) 6960P", "intel-xeon-graniterapids"},
		{"GenuineIntel", 6, 175, 3, "Intel(R) Xeon(R) 6780E", "intel-xeon-sierraforest"},
		{"GenuineIntel", 6, 151, 2, "12th Gen Intel(R) Core(TM) i9-12900K", "intel-core-6-151"},
		{"HygonGenuine", 0x18, 1, 1, "Hygon C86 7285 32-core Processor", "hygon-dhyana"},
		{"HygonGenuine", 0x19, 1, 1, "", "hygon-25-1"},
		{"Shanghai", 7, 0x3b, 0, "ZHAOXIN KaiSheng KH-37800D@2.7GHz", "zhaoxin-7-59"},
		{"CentaurHauls", 6, 0xf, 8, "VIA Nano", "centaur-6-15"},
		{"TransmetaCPU", 6, 4, 3, "", "unknown-6-4"},
	} {
		text := fmt.Sprintf("vendor_id: %s\ncpu family: %d\nmodel: %d\nstepping: %d\nmodel name: %s\n",
			tt.vendor, tt.family, tt.model, tt.stepping, tt.name)
		if got := identify(parse(text), firmware{}).Codename; got != tt.want {
			t.Errorf("%s %d/%d/%d %q is %q, want %q", tt.vendor, tt.family, tt.model, tt.stepping, tt.name, got, tt.want)
		}
	}
}

func TestCodenameArm(t *testing.T) {
	for _, tt := range []struct {
		implementer, part int
		fw                firmware
		vendor, want      string
	}{
		{0x41, 0xd4f, firmware{SoC: "jep106:036b:0241"}, "nvidia", "nvidia-grace"},
		{0x41, 0xd4f, firmware{Vendor: "NVIDIA", Product: "GB200 NVL"}, "nvidia", "nvidia-grace"},
		{0x41, 0xd4f, firmware{Vendor: "Amazon EC2", Product: "r8g.metal-24xl"}, "arm", "arm-neoverse-v2"},
		{0x41, 0xd40, firmware{}, "arm", "arm-neoverse-v1"},
		{0x41, 0xd0c, firmware{Vendor: "Amazon EC2"}, "arm", "arm-neoverse-n1"},
		{0x41, 0xd0c, firmware{SoC: "jep106:0a16:0001"}, "ampere", "ampere-altra"},
		{0xc0, 0xac3, firmware{}, "ampere", "ampereone"},
		{0x48, 0xd01, firmware{}, "huawei", "kunpeng-920"},
		{0x48, 0xd45, firmware{}, "huawei", "kunpeng-d45"},
		{0x70, 0x663, firmware{}, "phytium", "phytium-ftc663"},
		{0x70, 0x303, firmware{}, "phytium", "phytium-ftc310"},
		{0x70, 0x872, firmware{}, "phytium", "phytium-70-872"},
		{0x4e, 0x010, firmware{}, "nvidia", "nvidia-vera"},
		{0x41, 0xd87, firmware{SoC: "jep106:0426:8901", Vendor: "Dell Inc."}, "nvidia", "nvidia-gb10"},
		{0x41, 0xd85, firmware{Vendor: "NVIDIA", Product: "NVIDIA_DGX_Spark"}, "nvidia", "nvidia-gb10"},
		{0x41, 0xd85, firmware{}, "arm", "arm-cortex-x925"},
		{0x41, 0xd99, firmware{}, "arm", "arm-41-d99"},
		{0x99, 0x001, firmware{}, "unknown", "unknown-99-1"},
	} {
		got := identify(parse(fmt.Sprintf("CPU implementer: %#x\nCPU part: %#x\n", tt.implementer, tt.part)), tt.fw)
		if got.Codename != tt.want || got.Vendor != tt.vendor {
			t.Errorf("%x/%x %+v is %s %q, want %s %q", tt.implementer, tt.part, tt.fw, got.Vendor, got.Codename, tt.vendor, tt.want)
		}
	}
}

func TestRead(t *testing.T) {
	block := func(cpu, socket int) string {
		return fmt.Sprintf("processor\t: %d\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n"+
			"model name\t: AMD EPYC 7763 64-Core Processor\nstepping\t: 1\nphysical id\t: %d", cpu, socket)
	}
	tree := sysfstest.New(t)
	tree.CPUInfo("6.8.0", block(0, 0), block(1, 0), block(2, 1))
	want := machine.CPU{
		Arch: "amd64", Vendor: "amd", Family: 25, Model: 1, ModelName: "AMD EPYC 7763 64-Core Processor",
		Codename: "amd-epyc-milan", Sockets: 2,
	}
	got, err := Read(tree.Proc(), sysfs.New(tree.Sys()))
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// The topology of sysfs wins: it knows all packages, also on Arm.
	for cpu, socket := range []string{"0", "1", "2", "3"} {
		tree.Write(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu), socket)
	}
	if got, err = Read(tree.Proc(), sysfs.New(tree.Sys())); got.Sockets != 4 || err != nil {
		t.Errorf("%d sockets, %v", got.Sockets, err)
	}
	tree.CPUInfo("6.8.0", "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f")
	tree.Write("sys/devices/soc0/soc_id", "jep106:036b:0241")
	if got, err = Read(tree.Proc(), sysfs.New(tree.Sys())); got.Codename != "nvidia-grace" || got.Arch != "arm64" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	tree.Remove("proc/cpuinfo")
	if got, err = Read(tree.Proc(), sysfs.New(tree.Sys())); got.Codename != "unknown" || err == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzIdentify: whatever cpuinfo has, the codename fits a label value.
func FuzzIdentify(f *testing.F) {
	f.Add("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 7\nphysical id\t: 0\n\n", "jep106:036b:0241")
	f.Add("CPU implementer\t: 0x48\nCPU part\t: 0xd01\n", "")
	f.Add("vendor_id\t: AuthenticAMD\ncpu family\t: 99999999999999999999\n", "x")
	f.Add(":::\n\n:\n", "")
	valid := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	f.Fuzz(func(t *testing.T, text, soc string) {
		c := identify(parse(text), firmware{SoC: soc})
		if !valid.MatchString(c.Codename) || c.Vendor == "" || c.Sockets < 0 {
			t.Errorf("%+v", c)
		}
	})
}
