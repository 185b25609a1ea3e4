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
	}
	for i := range 4 {
		b.nvswitch("0x22a3", switched(0x02, 0x03, i, bus(0x07+i), 0, "8.0 GT/s PCIe"))
	}
	return b
}
