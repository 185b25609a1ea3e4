package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// guest is a slot of a Hyper-V guest: every function is alone in a PCI domain
// of its own, right on the root bus. The switches of the host are invisible;
// the topology files that such guests give to NCCL have them, and the kernel
// has not.
func guest(domain, numa int) slot {
	return slot{
		address: fmt.Sprintf("%04x:00:00.0", domain), root: fmt.Sprintf("pci%04x:00", domain), numa: numa,
	}
}

// azureNDv5 is Standard_ND96isr_H100_v5.
func azureNDv5() *build {
	b := start("azure-ndv5", "Virtual Machine", "5.15.0-1089-azure",
		xeon(143, "Intel(R) Xeon(R) Platinum 8480C", "sapphirerapids", nodes(21, "0-47", "48-95")...))
	b.driver("550.163.01", "12.4")
	for i, domain := range []int{0x1, 0x2, 0x3, 0x8, 0x9, 0xa, 0xb, 0xc} {
		b.gpu(h100SXM(), guest(domain, i/4))
		b.hca(fmt.Sprintf("mlx5_ib%d", i), fmt.Sprintf("ib%d", i), connectX7VF(), ndr(), machine.RoleFabric,
			guest(0x101+i, i/4))
	}
	return b
}

// azureNDv4 is Standard_ND96asr_v4. The order of PCI domains is not that of
// NUMA nodes.
func azureNDv4() *build {
	b := start("azure-ndv4", "Virtual Machine", "5.15.0-1089-azure",
		epyc(23, 49, 2, "7V12 64-Core Processor", "rome", nodes(20, "0-23", "24-47", "48-71", "72-95")...))
	b.driver("535.161.08", "12.2")
	numa := []int{1, 1, 0, 0, 3, 3, 2, 2}
	for i, domain := range []int{0x1, 0x2, 0x3, 0x4, 0xb, 0xc, 0xd, 0xe} {
		b.gpu(a100SXM(), guest(domain, numa[i]))
		b.hca(fmt.Sprintf("mlx5_ib%d", i), fmt.Sprintf("ib%d", i), connectX6VF(), hdr(), machine.RoleFabric,
			guest(0x101+i, numa[i]))
	}
	return b
}

// a100Pairs is Standard_NC96ads_A100_v4: four PCIe cards, bridged in pairs,
// each near a NUMA node of its own, and Ethernet only.
func a100Pairs() *build {
	b := start("a100-pcie-pairs", "Virtual Machine", "5.15.0-1089-azure",
		epyc(25, 1, 2, "7V13 64-Core Processor", "milan", nodes(20, "0-23", "24-47", "48-71", "72-95")...))
	b.driver("535.161.08", "12.2")
	for i := range 4 {
		c := a100PCIe()
		g := b.gpu(c, guest(1+i, i))
		g.NVLinks = []machine.NVLink{c.to(guest(1+(i^1), 0).address)}
	}
	b.hca("mlx5_an0", "enP54537s1", connectX5VF(), roce100(), machine.RoleFabric, guest(0xd509, -1))
	return b
}
