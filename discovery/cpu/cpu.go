// Package cpu finds out which processor a machine has: vendor, family, model
// and the codename that people schedule by.
//
// It owns the tables from CPUID and MIDR numbers to names and the parser of
// /proc/cpuinfo. It never runs CPUID itself (a replayed machine must give the
// same answer anywhere) and never guesses: what no source names has its number.
package cpu

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// maxInfo bounds /proc/cpuinfo, in bytes; 1,024 x86 threads need 1.5 MB.
const maxInfo = 4 << 20

// Read identifies the processor under a proc root (usually "/proc") and a
// sysfs tree. NUMA is left to the caller. /proc/cpuinfo is expensive on large
// machines, the kernel samples every core's clock for it; read it once.
func Read(procRoot string, tree sysfs.FS) (machine.CPU, error) {
	b, err := readInfo(filepath.Join(procRoot, "cpuinfo"))
	if err != nil {
		none := machine.CPU{Arch: runtime.GOARCH, Vendor: unknown, Codename: unknown}
		return none, fmt.Errorf("cpuinfo: %w", err)
	}
	c := identify(parse(string(b)), firmware{
		Vendor: tree.Text("class/dmi/id/sys_vendor"), Product: tree.Text("class/dmi/id/product_name"),
		SoC: tree.Text("devices/soc0/soc_id"),
	})
	if n := sockets(tree); n > 0 {
		c.Sockets = n
	}
	return c, nil
}

func readInfo(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxInfo))
}

// sockets counts distinct physical packages among the online processors; 0
// where the kernel does not report it.
func sockets(tree sysfs.FS) int {
	const dir = "devices/system/cpu"
	names, err := tree.List(dir)
	if err != nil {
		return 0
	}
	seen := map[int]bool{}
	for _, name := range names {
		id, err := strconv.Atoi(tree.Text(dir + "/" + name + "/topology/physical_package_id"))
		if err == nil && id >= 0 {
			seen[id] = true
		}
	}
	return len(seen)
}

// cpuInfo is what /proc/cpuinfo has of the first processor, and of all of them
// the number of packages.
type cpuInfo struct {
	// VendorID, Family, Model, Stepping and ModelName are x86's.
	VendorID, ModelName     string
	Family, Model, Stepping int
	// Implementer and Part are Arm's MIDR_EL1 fields; Arm reports whether
	// they were there.
	Arm               bool
	Implementer, Part int
	// Packages counts distinct "physical id"; 0 where there is none.
	Packages int
}

// parse reads /proc/cpuinfo of x86 (arch/x86/kernel/cpu/proc.c) and arm64
// (arch/arm64/kernel/cpuinfo.c). Lines that it does not know, and numbers that
// do not parse, are left out.
func parse(text string) cpuInfo {
	var info cpuInfo
	packages := map[string]bool{}
	first := true
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			// An empty line ends a processor's block.
			first = first && info == (cpuInfo{})
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key == "physical id" {
			packages[value] = true
		}
		if first {
			info.set(key, value)
		}
	}
	info.Packages = len(packages)
	return info
}

func (i *cpuInfo) set(key, value string) {
	switch key {
	case "vendor_id":
		i.VendorID = value
	case "model name":
		i.ModelName = value
	case "cpu family":
		i.Family = number(value)
	case "model":
		i.Model = number(value)
	case "stepping":
		i.Stepping = number(value)
	case "CPU implementer":
		i.Implementer, i.Arm = number(value), true
	case "CPU part":
		i.Part = number(value)
	}
}

// number reads decimal or 0x words; 0 if it is neither.
func number(s string) int {
	n, err := strconv.ParseUint(s, 0, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// firmware is what distinguishes machines with the same core.
type firmware struct {
	// Vendor and Product are DMI's sys_vendor and product_name; empty where there
	// is no DMI table.
	Vendor, Product string
	// SoC is the SMCCC identifier of an Arm processor, "jep106:036b:0241".
	SoC string
}

const unknown = "unknown"

// identify names a processor. Codename is vendor-line-codename from the
// tables, or vendor-family-model in numbers; always fit for a label value.
func identify(info cpuInfo, fw firmware) machine.CPU {
	c := machine.CPU{Vendor: unknown, Codename: unknown, ModelName: info.ModelName, Sockets: info.Packages}
	switch {
	case info.Arm:
		c.Arch, c.Family, c.Model = "arm64", info.Implementer, info.Part
		c.Vendor, c.Codename = arm(info.Implementer, info.Part, fw)
	case info.VendorID != "":
		c.Arch, c.Family, c.Model = "amd64", info.Family, info.Model
		c.Vendor, c.Codename = x86(info)
	default:
		c.Arch = runtime.GOARCH
	}
	return c
}
