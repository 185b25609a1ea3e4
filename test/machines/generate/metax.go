package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// startMetaX begins a machine with MetaX's driver and no other.
func startMetaX(node, version string, cpu machine.CPU) *build {
	b := start(node, "", "5.15.0-119-generic", cpu)
	b.noDriver()
	b.probe("mxcd", machine.ProbeOK, "")
	b.driver(version, "")
	b.m.Driver.Vendor = wellknown.MetaX
	return b
}

// metax adds a GPU. The number of lspci is that of the C500.
func (b *build) metax(s slot, product, device, maca string) {
	b.function(s, "0x038000", "0x9999", device, "metax")
	i := len(b.m.GPUs)
	parts := strings.SplitN(b.m.Driver.Version, ".", 3)
	b.m.GPUs = append(b.m.GPUs, machine.GPU{
		Vendor: "metax-tech.com", Index: i, Minor: new(128 + i), PCI: s.address,
		UUID:    "GPU-" + strings.NewReplacer(":", "-", ".", "-").Replace(s.address),
		Product: product, MemoryMiB: 65536, Health: machine.Health{State: machine.Healthy},
		Attributes: map[string]string{
			"installed": "true", "family": product[:3], "maca": maca,
			"uuid":         "GPU-" + uuid(b.m.Node, "gpu", strconv.Itoa(i)),
			"driver.major": parts[0], "driver.minor": parts[1], "driver.patch": parts[2],
		},
	})
}

// metaXLinks joins GPUs first to first+n-1, each with each. mx-smi shows that they are
// joined, and not by how many links.
func (b *build) metaXLinks(first, n int) {
	for i := first; i < first+n; i++ {
		for j := first; j < first+n; j++ {
			if i != j {
				g := &b.m.GPUs[i]
				g.NVLinks = append(g.NVLinks, machine.NVLink{Kind: "MX", Peer: b.m.GPUs[j].PCI, Links: 1})
			}
		}
	}
}

// c500Box has eight C500 that MetaXLink joins by fours, each four with two HCAs under a
// switch, and a dual-port adapter on the second processor: what mx-smi and mx-smi topo
// -n show of such a machine in ms-swift's guide for MetaX, driver 3.4.4, MACA 3.3.0.15.
// There all eight GPUs are of NUMA node 0, of two host bridges.
func c500Box() *build {
	b := startMetaX("metax-c500-box", "3.4.4",
		xeon(106, "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", "icelake", nodes(20, "0-31,64-95", "32-63,96-127")...))
	for half, root := range []int{0x0a, 0x3a} {
		for i := range 4 {
			b.metax(switched(root, root+1, i, bus(root+4+i), 0, gen4), "MXC500", "0x4001", "3.3.0.15")
		}
		b.metaXLinks(4*half, 4)
		for i := range 2 {
			n := 2*half + i
			b.hca(fmt.Sprintf("mlx5_%d", n), fmt.Sprintf("ibs%d", 10+n), connectX6(), hdr(), machine.RoleFabric,
				switched(root, root+1, 4+i, bus(root+8+i), 0, gen4))
		}
	}
	for i := range 2 {
		b.hca(fmt.Sprintf("mlx5_%d", 4+i), fmt.Sprintf("ens20f%dnp%d", i, i), connectX6Lx(), roce25(), machine.RoleManagement,
			direct(0x80, fmt.Sprintf("0000:81:00.%d", i), 1, gen4))
	}
	b.oneAdapter()
	return b
}

// c550PCIe has four C550 in slots of their own, without MetaXLink, and one Ethernet
// adapter. Addresses, driver 2.15.9 and MACA 2.32.0.6 are those of such a card in
// Paddle's guide for MetaX; the slots are made up.
func c550PCIe() *build {
	b := startMetaX("metax-c550-pcie", "2.15.9",
		epyc(25, 1, 2, "7763 64-Core Processor", "milan", nodes(32, "0-63,128-191", "64-127,192-255")...))
	for i, address := range []int{0x0f, 0x34, 0x87, 0xae} {
		b.metax(direct(address-1, bus(address), i/2, gen5), "MXC550", "0x4000", "2.32.0.6")
	}
	b.hca("mlx5_0", "ens65np0", connectX6Dx(), roce100(), machine.RoleFabric, direct(0x40, "0000:41:00.0", 0, gen4))
	return b
}
