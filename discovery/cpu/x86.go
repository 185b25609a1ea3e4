package cpu

import (
	"fmt"
	"regexp"
	"strings"
)

// x86 names a processor by CPUID leaf 0's vendor and leaf 1's display family
// and model.
func x86(i Info) (vendor, codename string) {
	var line, name string
	switch i.VendorID {
	case "AuthenticAMD":
		vendor, line, name = "amd", amdLine(i.ModelName), amd(i)
	case "GenuineIntel":
		vendor, line, name = "intel", intelLine(i.ModelName), intel(i)
	case "HygonGenuine":
		// Family 18h is Zen 1 under license, Dhyana (arch/x86/kernel/cpu/hygon.c).
		vendor = "hygon"
		if i.Family == 0x18 {
			name = "dhyana"
		}
	case "CentaurHauls", "  Shanghai  ", "Shanghai":
		vendor = "zhaoxin"
	default:
		return unknown, fmt.Sprintf("%s-%d-%d", unknown, i.Family, i.Model)
	}
	// A server's table entry wins over a name that says nothing, as in
	// guests; a desktop part with a server's number keeps its number.
	server := line == "epyc" || line == "xeon" || line == ""
	switch {
	case name == "" || !server:
		name = fmt.Sprintf("%d-%d", i.Family, i.Model)
	case vendor == "amd":
		line = "epyc"
	case vendor == "intel":
		line = "xeon"
	}
	if line != "" {
		return vendor, vendor + "-" + line + "-" + name
	}
	return vendor, vendor + "-" + name
}

func amdLine(modelName string) string {
	for _, line := range []string{"EPYC", "Threadripper", "Ryzen", "Opteron", "Instinct"} {
		if strings.Contains(modelName, line) {
			return strings.ToLower(line)
		}
	}
	return ""
}

func intelLine(modelName string) string {
	for _, line := range []string{"Xeon", "Core", "Atom"} {
		if strings.Contains(modelName, line) {
			return strings.ToLower(line)
		}
	}
	return ""
}

// amd is the codename of a server part. Ranges are those of AMD's Processor
// Programming References (each covers sixteen models of a family) and of
// arch/x86/kernel/cpu/amd.c, bsp_init_amd and init_amd_zen*.
func amd(i Info) string {
	switch {
	case i.Family == 0x17 && i.Model <= 0x0f:
		return "naples"
	case i.Family == 0x17 && i.Model >= 0x30 && i.Model <= 0x3f:
		return "rome"
	case i.Family == 0x19 && i.Model <= 0x0f:
		return "milan"
	case i.Family == 0x19 && i.Model >= 0x10 && i.Model <= 0x1f:
		return "genoa"
	case i.Family == 0x19 && i.Model >= 0x60 && i.Model <= 0x6f:
		return "raphael" // EPYC 4004.
	case i.Family == 0x19 && i.Model >= 0xa0 && i.Model <= 0xaf:
		return zen4c(i.ModelName)
	case i.Family == 0x1a && i.Model <= 0x0f:
		return "turin"
	case i.Family == 0x1a && i.Model >= 0x10 && i.Model <= 0x1f:
		return "turin-dense"
	case i.Family == 0x1a && i.Model >= 0x40 && i.Model <= 0x4f:
		return "grado" // EPYC 4005.
	}
	return ""
}

// zen4c tells Siena from Bergamo. Both are family 19h, models A0h to AFh;
// Siena is the 8004 series ("EPYC 8324P"), Bergamo the 97x4.
func zen4c(modelName string) string {
	if regexp.MustCompile(`EPYC 8\d\d4`).MatchString(modelName) {
		return "siena"
	}
	return "bergamo"
}

// intel is the codename of a server part of family 6, and of family 19 since
// Diamond Rapids: arch/x86/include/asm/intel-family.h.
func intel(i Info) string {
	if i.Family == 0x13 && i.Model == 0x01 {
		return "diamondrapids"
	}
	if i.Family != 6 {
		return ""
	}
	switch i.Model {
	case 0x1a, 0x2e:
		return "nehalem"
	case 0x2c, 0x2f:
		return "westmere"
	case 0x2d:
		return "sandybridge"
	case 0x3e:
		return "ivybridge"
	case 0x3f:
		return "haswell"
	case 0x4f, 0x56:
		return "broadwell"
	case 0x55:
		return skylakeX(i.Stepping)
	case 0x57:
		return "knightslanding"
	case 0x85:
		return "knightsmill"
	case 0x6a, 0x6c:
		return "icelake"
	case 0x8f:
		return "sapphirerapids"
	case 0xcf:
		return "emeraldrapids"
	case 0xad, 0xae:
		return "graniterapids"
	case 0xaf:
		return "sierraforest"
	case 0xdd:
		return "clearwaterforest"
	}
	return ""
}

// skylakeX tells apart three generations with one model number: stepping 7 is
// Cascade Lake and 11 Cooper Lake (the comments of intel-family.h); 5 and 6
// are Cascade Lake's earlier steppings and 10 is Cooper Lake's (microcode
// files 06-55-05 to 06-55-0b).
func skylakeX(stepping int) string {
	switch {
	case stepping >= 10:
		return "cooperlake"
	case stepping >= 5:
		return "cascadelake"
	}
	return "skylake"
}
