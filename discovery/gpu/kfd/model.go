package kfd

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// product returns the name of a GPU: the board's (product_name, which is empty where
// the board has no identification ROM), else that of the PCI device number in
// libdrm's list (amdgpu.ids), for GPUs of datacenters.
func product(board string, device uint64) string {
	name := map[uint64]string{
		0x738c: "AMD Instinct MI100", 0x738e: "AMD Instinct MI100",
		0x7408: "AMD Instinct MI250X", 0x740c: "AMD Instinct MI250X / MI250", 0x740f: "AMD Instinct MI210",
		0x74a0: "AMD Instinct MI300A", 0x74a1: "AMD Instinct MI300X", 0x74a2: "AMD Instinct MI308X",
		0x74a5: "AMD Instinct MI325X", 0x74a8: "AMD Instinct MI308X HF", 0x74a9: "AMD Instinct MI300X HF",
		0x74b5: "AMD Instinct MI300X VF", 0x74b9: "AMD Instinct MI325X VF", 0x74bd: "AMD Instinct MI300X HF VF",
		0x75a0: "AMD Instinct MI350X", 0x75a3: "AMD Instinct MI355X",
	}[device]
	return cmp.Or(strings.TrimSpace(board), name, fmt.Sprintf("AMD GPU %04x", device))
}

// graphics returns the parts of gfx_target_version: 9.4.2 of 90402.
func graphics(target uint64) (major, minor, step uint64) {
	return target / 10000, target / 100 % 100, target % 100
}

// architecture returns the generation, by the number that the compiler calls gfx942
// ("ROCm: GPU hardware specifications").
func architecture(target uint64) string {
	switch major, minor, step := graphics(target); {
	case major == 9 && minor == 0 && step == 8:
		return "cdna"
	case major == 9 && minor == 0 && step == 10:
		return "cdna2"
	case major == 9 && minor == 4:
		return "cdna3"
	case major == 9 && minor == 5:
		return "cdna4"
	case major == 9:
		return "vega"
	case major == 10 && minor < 3:
		return "rdna"
	case major >= 10 && major < 13:
		return "rdna" + strconv.FormatUint(major-8, 10)
	}
	return ""
}

// family is libdrm's name of the GPU's family (AMDGPU_FAMILY_*), as AMD's node
// labeller writes it; empty where this number does not decide it.
func family(target uint64) string {
	switch major, minor, _ := graphics(target); {
	case major == 9:
		return "AI"
	case major == 10:
		return "NV"
	case major == 11 && minor == 0:
		return "GC_11_0_0"
	case major == 12 && minor == 0:
		return "GC_12_0_0"
	}
	return ""
}

// attributes returns the values of AMD's own node labels. As AMD's labeller has it,
// those of a partition are counted, and not those of the GPU that it was cut from.
func attributes(g *machine.GPU, d *device) map[string]string {
	p := d.nodes[0].properties
	memory := g.MemoryMiB
	if len(g.MIG.Devices) > 0 {
		memory = g.MIG.Devices[0].MemoryMiB
	}
	compute, nps, _ := strings.Cut(strings.ToLower(g.MIG.Mode), "/")
	a := map[string]string{
		"device-id":                      fmt.Sprintf("%04x", p["device_id"]),
		"family":                         family(p["gfx_target_version"]),
		"product-name":                   strings.NewReplacer(" ", "_", "(", "", ")", "").Replace(g.Product),
		"simd-count":                     strconv.FormatUint(p["simd_count"], 10),
		"vram":                           strconv.FormatInt((memory+512)/1024, 10) + "G",
		"compute-memory-partition":       "",
		"compute-partitioning-supported": strconv.FormatBool(compute != ""),
		"memory-partitioning-supported":  strconv.FormatBool(nps != ""),
	}
	if n := d.nodes[0].computeUnits(); n > 0 {
		a["cu-count"] = strconv.Itoa(n)
	}
	if compute != "" && nps != "" {
		a["compute-memory-partition"] = profile(compute, nps)
	}
	return a
}
