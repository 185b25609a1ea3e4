// Package cpu finds out which processor a machine has: vendor, family, model
// and the codename that people schedule by.
//
// It owns the tables from CPUID and MIDR numbers to names and the parser of
// /proc/cpuinfo. It never runs CPUID itself (a replayed machine must give the
// same answer anywhere) and never guesses: what no source names has its number.
package cpu

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// maxInfo bounds /proc/cpuinfo, in bytes; 1,024 x86 threads need 1.5 MB.
const maxInfo = 16 << 20

// Read identifies the processor under a proc root (usually "/proc") and a
// sysfs tree. NUMA is left to the caller. /proc/cpuinfo is expensive on large
// machines, the kernel samples every core's clock for it; read it once.
func Read(procRoot string, tree sysfs.FS) (machine.CPU, error) {
	b, err := hostfile.ReadAtMost(filepath.Join(procRoot, "cpuinfo"), maxInfo)
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

// cpuInfo has the values of the first processor in /proc/cpuinfo, by their keys, and
// the number of packages; 0 if it is unknown.
type cpuInfo struct {
	first    map[string]string
	packages int
}

// number reads decimal or 0x words; 0 if it is neither.
func (i *cpuInfo) number(key string) int {
	n, err := strconv.ParseUint(i.first[key], 0, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// parse reads /proc/cpuinfo of x86 (arch/x86/kernel/cpu/proc.c) and arm64
// (arch/arm64/kernel/cpuinfo.c).
func parse(text string) cpuInfo {
	first, packages := map[string]string{}, map[string]bool{}
	ended := false
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			// An empty line ends a processor's block.
			ended = len(first) > 0
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key == "physical id" {
			packages[value] = true
		}
		if !ended {
			first[key] = value
		}
	}
	return cpuInfo{first, len(packages)}
}

// firmware distinguishes machines with the same core.
type firmware struct {
	// Vendor and Product are DMI's sys_vendor and product_name; empty where there
	// the DMI table is missing.
	Vendor, Product string
	// SoC is the SMCCC identifier of an Arm processor, "jep106:036b:0241".
	SoC string
}

const unknown = "unknown"

// identify names a processor. Codename is vendor-line-codename from the
// tables, or vendor-family-model in numbers; always fit for a label value.
func identify(info cpuInfo, fw firmware) machine.CPU {
	c := machine.CPU{
		Vendor: unknown, Codename: unknown, ModelName: info.first["model name"], Sockets: info.packages,
	}
	if _, isArm := info.first["CPU implementer"]; isArm {
		c.Arch, c.Family, c.Model = "arm64", info.number("CPU implementer"), info.number("CPU part")
		c.Vendor, c.Codename = arm(c.Family, c.Model, fw)
		return c
	}
	vendorID := info.first["vendor_id"]
	if vendorID == "" {
		c.Arch = runtime.GOARCH
		return c
	}
	c.Arch, c.Family, c.Model = "amd64", info.number("cpu family"), info.number("model")
	c.Vendor, c.Codename = x86(vendorID, c.ModelName, c.Family, c.Model, info.number("stepping"))
	return c
}
