package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// dgxH100 is NVIDIA's DGX H100: eight GPUs and eight ConnectX-7 of the compute
// fabric, each pair under a switch of its own, and two dual-port ConnectX-7
// for storage. Addresses and names are those of the DGX H100 user guide; the
// numbers of the fabric's HCAs have gaps where the storage ports are.
func dgxH100() *build {
	b := start("dgx-h100", "DGXH100", "5.15.0-1063-nvidia",
		xeon(143, "Intel(R) Xeon(R) Platinum 8480C", "sapphirerapids", nodes(21, "0-55,112-167", "56-111,168-223")...))
	b.driver("550.163.01", "12.4")
	names := []int{0, 3, 4, 5, 6, 9, 10, 11}
	for i, nic := range []int{0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc} {
		root, up := nic-3, nic-2
		b.hca(fmt.Sprintf("mlx5_%d", names[i]), fmt.Sprintf("ibp%ds0", nic), connectX7(), ndr(), machine.RoleFabric,
			switched(root, up, 0, bus(nic), i/4, gen5))
		b.gpu(h100SXM(), switched(root, up, 2, bus(nic+3), i/4, gen5))
	}
	for i, nic := range []int{0x29, 0xaa} {
		for port := range 2 {
			s := direct(nic-1, fmt.Sprintf("0000:%02x:00.%d", nic, port), i, gen5)
			b.hca(fmt.Sprintf("mlx5_%d", []int{1, 7}[i]+port), fmt.Sprintf("enp%ds0f%dnp%d", nic, port, port),
				connectX7(), roce100(), machine.RoleStorage, s)
		}
		b.oneAdapter()
	}
	for i := range 4 {
		b.nvswitch("0x22a3", switched(0x02, 0x03, i, bus(0x07+i), 0, "8.0 GT/s PCIe"))
	}
	return b
}

// dgxA100 is NVIDIA's DGX A100, with processors in NPS4: eight NUMA nodes.
// Two GPUs and two ConnectX-6 share a switch, and each is behind a second
// stage of its own, so that the nearest way is PXB.
func dgxA100() *build {
	var cpus []string
	for i := range 8 {
		cpus = append(cpus, fmt.Sprintf("%d-%d,%d-%d", 16*i, 16*i+15, 128+16*i, 143+16*i))
	}
	b := start("dgx-a100", "DGXA100 920-23687-2530-000", "5.15.0-1063-nvidia",
		epyc(23, 49, 2, "7742 64-Core Processor", "rome", nodes(12, cpus...)...))
	b.driver("535.161.08", "12.2")
	for _, quarter := range []struct {
		root, numa int
		gpus, nics [2]int
		names      [2]int
	}{
		{0x00, 3, [2]int{0x07, 0x0f}, [2]int{0x0c, 0x12}, [2]int{0, 1}},
		{0x40, 1, [2]int{0x47, 0x4e}, [2]int{0x4b, 0x54}, [2]int{2, 3}},
		{0x80, 7, [2]int{0x87, 0x90}, [2]int{0x8d, 0x94}, [2]int{6, 7}},
		{0xa0, 5, [2]int{0xb7, 0xbd}, [2]int{0xba, 0xcc}, [2]int{8, 9}},
	} {
		for i := range 2 {
			b.gpu(a100SXM(), staged(quarter.root, 2*i, quarter.gpus[i], quarter.numa, gen4))
			b.hca(fmt.Sprintf("mlx5_%d", quarter.names[i]), fmt.Sprintf("ibp%ds0", quarter.nics[i]),
				connectX6(), hdr(), machine.RoleFabric, staged(quarter.root, 2*i+1, quarter.nics[i], quarter.numa, gen4))
		}
	}
	for i := range 2 {
		b.hca(fmt.Sprintf("mlx5_%d", 4+i), fmt.Sprintf("enp97s0f%dnp%d", i, i), connectX6(), roce100(),
			machine.RoleStorage, direct(0x60, fmt.Sprintf("0000:61:00.%d", i), 0, gen4))
	}
	b.oneAdapter()
	for i := range 6 {
		s := staged(0xa0, 4, 0xc4+i, 5, "8.0 GT/s PCIe")
		s.upstream[3], s.upstream[4] = "0000:c2:00.0", fmt.Sprintf("0000:c3:%02x.0", i)
		b.nvswitch("0x1af1", s)
	}
	return b
}

// staged is a slot behind two stages of switches: the first, of two ports, is
// the root port's, the second is the slot's own.
func staged(root, port, at, numa int, speed string) slot {
	return slot{
		address: bus(at), root: bridge(root), numa: numa, speed: speed, width: 16,
		upstream: []string{
			fmt.Sprintf("0000:%02x:01.1", root), fmt.Sprintf("0000:%02x:00.0", root+1),
			fmt.Sprintf("0000:%02x:%02x.0", root+2, port),
			fmt.Sprintf("0000:%02x:00.0", at-2), fmt.Sprintf("0000:%02x:00.0", at-1),
		},
	}
}
