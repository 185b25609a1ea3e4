package cpu

import (
	"fmt"
	"strings"
)

// x86 names a processor by CPUID leaf 0's vendor and leaf 1's display family
// and model.
func x86(vendorID, modelName string, family, model, stepping int) (vendor, codename string) {
	vendor = map[string]string{
		"AuthenticAMD": "amd", "GenuineIntel": "intel", "HygonGenuine": "hygon",
		"Shanghai":     "zhaoxin", // With blanks around it in CPUID (arch/x86/kernel/cpu/zhaoxin.c).
		"CentaurHauls": "centaur", // arch/x86/kernel/cpu/centaur.c
	}[vendorID]
	var server, line, name string
	switch vendor {
	case "":
		return unknown, fmt.Sprintf("%s-%d-%d", unknown, family, model)
	case "amd":
		server, name = "epyc", amd(modelName, family, model)
		line = lineOf(modelName, "EPYC", "Threadripper", "Ryzen", "Opteron", "Instinct")
	case "intel":
		server, name = "xeon", intel(family, model, stepping)
		line = lineOf(modelName, "Xeon", "Core", "Atom")
	case "hygon":
		// Family 18h is Zen 1 under license, Dhyana (arch/x86/kernel/cpu/hygon.c).
		if family == 0x18 {
			name = "dhyana"
		}
	}
	// A server's table entry wins over a name that identifies no model, as in
	// virtual machines; a desktop part with a server's number keeps its number.
	if name == "" || line != "" && line != server {
		name = fmt.Sprintf("%d-%d", family, model)
	} else {
		line = server
	}
	if line != "" {
		name = line + "-" + name
	}
	return vendor, vendor + "-" + name
}

// lineOf returns the first product line that a name has, in lower case.
func lineOf(modelName string, lines ...string) string {
	for _, line := range lines {
		if strings.Contains(modelName, line) {
			return strings.ToLower(line)
		}
	}
	return ""
}

// amd returns the codename of a server part. LLVM's table of families and models
// (llvm/lib/TargetParser/Host.cpp, getAMDProcessorTypeAndSubtype) has the
// ranges and AMD's internal names, given behind each row; the kernel's
// arch/x86/kernel/cpu/amd.c agrees on the generations. Which EPYC series that
// is, is on AMD's product pages.
func amd(modelName string, family, model int) string {
	switch {
	case family == 0x17 && model == 0x01: // Naples, with Zen desktop parts.
		return series(modelName, "naples", "3", "snowyowl")
	case family == 0x17 && model >= 0x30 && model <= 0x3f: // Rome, Castle Peak.
		return "rome"
	case family == 0x19 && model <= 0x0f: // Milan, Chagall.
		return "milan"
	case family == 0x19 && model >= 0x10 && model <= 0x1f: // Stones, Storm Peak.
		return "genoa"
	case family == 0x19 && model >= 0x60 && model <= 0x6f: // Raphael: EPYC 4004.
		return "raphael"
	case family == 0x19 && model >= 0xa0 && model <= 0xaf: // Stones-Dense: EPYC 97x4 and 8004.
		return series(modelName, "", "97", "bergamo", "8", "siena")
	case family == 0x1a && model <= 0x0f: // Breithorn.
		return "turin"
	case family == 0x1a && model >= 0x10 && model <= 0x1f: // Breithorn-Dense.
		return "turin-dense"
	case family == 0x1a && model >= 0x40 && model <= 0x4f: // Granite Ridge: EPYC 4005.
		return "graniteridge"
	}
	return ""
}

// series distinguishes chips of one model by the first digits of the number after
// EPYC: pairs of digits and codename. A virtual machine's name ("AMD EPYC-Genoa
// Processor") has none; other is for all that no pair fits.
func series(modelName, other string, pairs ...string) string {
	_, number, _ := strings.Cut(modelName, "EPYC ")
	for i := 0; i+1 < len(pairs); i += 2 {
		if strings.HasPrefix(number, pairs[i]) {
			return pairs[i+1]
		}
	}
	return other
}

// intel returns the codename of a server part: arch/x86/include/asm/intel-family.h,
// with its constant behind each row. Family 6, and 19 since Diamond Rapids.
func intel(family, model, stepping int) string {
	switch {
	case family == 19 && model == 0x01:
		return "diamondrapids" // DIAMONDRAPIDS_X
	case family != 6:
		return ""
	case model == 0x55:
		return skylakeX(stepping)
	}
	return map[int]string{
		0x1a: "nehalem", 0x2e: "nehalem", // NEHALEM_EP, NEHALEM_EX
		0x2c: "westmere", 0x2f: "westmere", // WESTMERE_EP, WESTMERE_EX
		0x2d: "sandybridge",                  // SANDYBRIDGE_X
		0x3e: "ivybridge",                    // IVYBRIDGE_X
		0x3f: "haswell",                      // HASWELL_X
		0x4f: "broadwell", 0x56: "broadwell", // BROADWELL_X, BROADWELL_D
		0x57: "knightslanding",           // XEON_PHI_KNL
		0x85: "knightsmill",              // XEON_PHI_KNM
		0x6a: "icelake", 0x6c: "icelake", // ICELAKE_X, ICELAKE_D
		0x8f: "sapphirerapids",                       // SAPPHIRERAPIDS_X
		0xcf: "emeraldrapids",                        // EMERALDRAPIDS_X
		0xad: "graniterapids", 0xae: "graniterapids", // GRANITERAPIDS_X, GRANITERAPIDS_D
		0xaf: "sierraforest",     // ATOM_CRESTMONT_X
		0xdd: "clearwaterforest", // ATOM_DARKMONT_X
	}[model]
}

// skylakeX distinguishes three generations with one model number: stepping 7 is
// Cascade Lake and 11 Cooper Lake (the comments of intel-family.h); Cascade
// Lake begins at 5 (tools/perf/pmu-events/arch/x86/mapfile.csv).
func skylakeX(stepping int) string {
	switch {
	case stepping == 11:
		return "cooperlake"
	case stepping >= 5:
		return "cascadelake"
	}
	return "skylake"
}
