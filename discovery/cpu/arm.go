package cpu

import (
	"fmt"
	"strings"
)

// arm names a processor by MIDR_EL1's implementer and part: the kernel's
// arch/arm64/include/asm/cputype.h. A licensed core has "Arm" whichever company built
// the chip, so the chip's own identifier and the firmware decide first.
func arm(implementer, part int, fw firmware) (vendor, codename string) {
	vendor, codename = armCore(implementer, part)
	switch codename {
	case "arm-neoverse-v2":
		if isGrace(fw) {
			return "nvidia", "nvidia-grace"
		}
	case "arm-neoverse-n1":
		// JEP106 bank 10, 0x16 is Ampere Computing.
		if strings.HasPrefix(fw.SoC, "jep106:0a16") || strings.Contains(fw.Vendor, "Ampere") {
			return "ampere", "ampere-altra"
		}
	}
	return vendor, codename
}

// isGrace: SMCCC_SOC_ID_T241 is 0x036b0241 (drivers/irqchip/irq-gic-v3.c).
// Virtual machines do not see it, but keep the board's name.
func isGrace(fw firmware) bool {
	if strings.HasPrefix(fw.SoC, "jep106:036b") {
		return true
	}
	for _, word := range []string{"Grace", "GH200", "GB200", "GB300"} {
		if strings.Contains(fw.Product, word) {
			return true
		}
	}
	return fw.Vendor == "NVIDIA"
}

func armCore(implementer, part int) (vendor, codename string) {
	var name string
	switch implementer {
	case 0x41: // ARM_CPU_IMP_ARM; Graviton 2 to 4 are N1, V1 and V2.
		vendor, name = "arm", armPart(part)
	case 0x43, 0x42: // ARM_CPU_IMP_CAVIUM, and Broadcom, which began ThunderX2.
		vendor = "marvell"
		if part == 0x0af || part == 0x516 { // CAVIUM_CPU_PART_THUNDERX2, BRCM_CPU_PART_VULCAN
			name = "thunderx2"
		}
	case 0x46: // ARM_CPU_IMP_FUJITSU
		vendor = "fujitsu"
		if part == 0x001 {
			name = "a64fx" // FUJITSU_CPU_PART_A64FX
		}
	case 0x48: // ARM_CPU_IMP_HISI
		return huawei(part)
	case 0x4e: // ARM_CPU_IMP_NVIDIA
		vendor = "nvidia"
		switch part {
		case 0x004:
			name = "carmel" // NVIDIA_CPU_PART_CARMEL
		case 0x010:
			name = "vera" // NVIDIA_CPU_PART_OLYMPUS, the cores of Vera.
		}
	case 0x6d: // ARM_CPU_IMP_MICROSOFT
		vendor = "microsoft"
		if part == 0xd49 {
			name = "cobalt-100" // MICROSOFT_CPU_PART_AZURE_COBALT_100
		}
	case 0x70: // Not in cputype.h; the list is util-linux's (sys-utils/lscpu-arm.c, ft_part).
		vendor, name = "phytium", phytium(part)
	case 0xc0: // ARM_CPU_IMP_AMPERE
		vendor = "ampere"
		if part == 0xac3 || part == 0xac4 { // AMPERE_CPU_PART_AMPERE1, AMPERE1A
			name = "ampereone"
			return vendor, name
		}
	default:
		vendor = unknown
	}
	if name == "" {
		name = fmt.Sprintf("%x-%x", implementer, part)
	}
	return vendor, vendor + "-" + name
}

// armPart is ARM_CPU_PART_NEOVERSE_* of cputype.h.
func armPart(part int) string {
	switch part {
	case 0xd0c:
		return "neoverse-n1"
	case 0xd40:
		return "neoverse-v1"
	case 0xd49:
		return "neoverse-n2"
	case 0xd4f:
		return "neoverse-v2"
	case 0xd84:
		return "neoverse-v3"
	case 0xd83:
		return "neoverse-v3ae"
	case 0xd8e:
		return "neoverse-n3"
	}
	return ""
}

func phytium(part int) string {
	switch part {
	case 0x303:
		return "ftc310"
	case 0x660, 0x661, 0x662, 0x663, 0x664, 0x862:
		return fmt.Sprintf("ftc%x", part)
	}
	return ""
}

// huawei names HiSilicon's server parts by the product, as their users do:
// TSV110 (0xd01) is Kunpeng 920, HIP09 (0xd02) its successor's core.
func huawei(part int) (vendor, codename string) {
	switch part {
	case 0xd01:
		return "huawei", "kunpeng-920"
	case 0xd02:
		return "huawei", "kunpeng-hip09"
	}
	return "huawei", fmt.Sprintf("kunpeng-%x", part)
}
