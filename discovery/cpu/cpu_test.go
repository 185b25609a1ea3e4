package cpu

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

var update = flag.Bool("update", false, "write the results in testdata")

// TestCodenames: of what /proc/cpuinfo has, and of an Arm machine's firmware.
func TestCodenames(t *testing.T) {
	golden.Rows(t, "testdata/codenames.txt", *update, func(text string) string {
		var fw firmware
		for key, value := range map[string]*string{"SoC": &fw.SoC, "Vendor": &fw.Vendor, "Product": &fw.Product} {
			_, rest, _ := strings.Cut(text, "firmware "+key+": ")
			*value, _, _ = strings.Cut(rest, "\n")
		}
		c := identify(parse(text), fw)
		return c.Vendor + " " + c.Codename
	})
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
