package cpu

import (
	"fmt"
	"slices"
	"strings"
)

// arm names a processor by MIDR_EL1's implementer and part. A licensed core has
// "Arm" whichever company built the chip, so the chip's own identifier and the
// firmware decide first.
func arm(implementer, part int, fw firmware) (vendor, codename string) {
	vendor, known := implementers()[implementer]
	if !known {
		vendor = unknown
	}
	codename, known = cores()[core{implementer, part}]
	switch {
	case isGB10(fw):
		return "nvidia", "nvidia-gb10"
	case codename == "arm-neoverse-v2" && isGrace(fw):
		return "nvidia", "nvidia-grace"
	// JEP106 bank 10, 0x16 is Ampere Computing.
	case codename == "arm-neoverse-n1" &&
		(strings.HasPrefix(fw.SoC, "jep106:0a16") || strings.Contains(fw.Vendor, "Ampere")):
		return "ampere", "ampere-altra"
	case known:
		return vendor, codename
	case vendor == "huawei":
		return vendor, fmt.Sprintf("kunpeng-%x", part)
	}
	return vendor, fmt.Sprintf("%s-%x-%x", vendor, implementer, part)
}

// isGrace: SMCCC_SOC_ID_T241 is 0x036b0241 (drivers/irqchip/irq-gic-v3.c).
// Virtual machines do not see it, but keep the board's name.
func isGrace(fw firmware) bool {
	return strings.HasPrefix(fw.SoC, "jep106:036b") || fw.Vendor == "NVIDIA" ||
		slices.ContainsFunc([]string{"Grace", "GH200", "GB200", "GB300"}, func(word string) bool {
			return strings.Contains(fw.Product, word)
		})
}

// isGB10: MediaTek's (0426) number 8901 is the processor of NVIDIA's GB10, in DGX Spark
// and other makers' machines alike; its cores are Cortex-X925 and -A725.
func isGB10(fw firmware) bool {
	return fw.SoC == "jep106:0426:8901" || strings.Contains(fw.Product, "GB10") || fw.Product == "NVIDIA_DGX_Spark"
}

// implementers are ARM_CPU_IMP_* of the kernel's arch/arm64/include/asm/cputype.h.
func implementers() map[int]string {
	return map[int]string{
		0x41: "arm",
		0x42: "marvell", // Broadcom, which began ThunderX2.
		0x43: "marvell", // Cavium.
		0x46: "fujitsu",
		0x48: "huawei",
		0x4e: "nvidia",
		0x6d: "microsoft",
		0x70: "phytium", // Not in cputype.h; see cores.
		0xc0: "ampere",
	}
}

type core struct{ implementer, part int }

// cores are cputype.h's; its constant is behind a row where the name is
// another; Phytium's are util-linux's (sys-utils/lscpu-arm.c, ft_part).
// HiSilicon's server parts have the product's name, as their users write it.
func cores() map[core]string {
	return map[core]string{
		{0x41, 0xd0c}: "arm-neoverse-n1", // Graviton 2 to 4 are N1, V1 and V2.
		{0x41, 0xd40}: "arm-neoverse-v1",
		{0x41, 0xd49}: "arm-neoverse-n2",
		{0x41, 0xd4f}: "arm-neoverse-v2",
		{0x41, 0xd83}: "arm-neoverse-v3ae",
		{0x41, 0xd84}: "arm-neoverse-v3",
		{0x41, 0xd8e}: "arm-neoverse-n3",
		{0x41, 0xd85}: "arm-cortex-x925",
		{0x41, 0xd87}: "arm-cortex-a725",
		{0x42, 0x516}: "marvell-thunderx2", // BRCM_CPU_PART_VULCAN
		{0x43, 0x0af}: "marvell-thunderx2",
		{0x46, 0x001}: "fujitsu-a64fx",
		{0x48, 0xd01}: "kunpeng-920",   // HISI_CPU_PART_TSV110
		{0x48, 0xd02}: "kunpeng-hip09", // The core of its successor.
		{0x4e, 0x004}: "nvidia-carmel",
		{0x4e, 0x010}: "nvidia-vera", // NVIDIA_CPU_PART_OLYMPUS, the cores of Vera.
		{0x6d, 0xd49}: "microsoft-cobalt-100",
		{0x70, 0x303}: "phytium-ftc310",
		{0x70, 0x660}: "phytium-ftc660",
		{0x70, 0x661}: "phytium-ftc661",
		{0x70, 0x662}: "phytium-ftc662",
		{0x70, 0x663}: "phytium-ftc663",
		{0x70, 0x664}: "phytium-ftc664",
		{0x70, 0x862}: "phytium-ftc862",
		{0xc0, 0xac3}: "ampereone", // AMPERE_CPU_PART_AMPERE1
		{0xc0, 0xac4}: "ampereone", // AMPERE_CPU_PART_AMPERE1A
	}
}
