package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// h200Scrambled has eight H200 and eight ConnectX-7, each pair under a switch.
// The numbers of the HCAs follow no order of the GPUs: nic[i] is the one
// beside GPU i, from the published nvidia-smi table of such a node.
func h200Scrambled() *build {
	b := start("h200-scrambled-nics", "", "6.8.0-60-generic",
		epyc(25, 17, 2, "9534 64-Core Processor", "genoa", nodes(32, "0-63,128-191", "64-127,192-255")...))
	b.driver("570.124.06", "12.8")
	nic := []int{4, 1, 0, 3, 6, 7, 5, 2}
	for i := range 8 {
		root := 0x20 * i
		b.hca(fmt.Sprintf("mlx5_%d", nic[i]), fmt.Sprintf("ibp%ds0", root+3), connectX7(), ndr(), machine.RoleFabric,
			switched(root, root+1, 0, bus(root+3), i/4, gen5))
		b.gpu(h200SXM(), switched(root, root+1, 1, bus(root+4), i/4, gen5))
	}
	return b
}

// h20 has eight H20 and four ConnectX-7 for RoCE: two GPUs share an HCA.
func h20() *build {
	b := start("h20-4nic", "", "5.15.0-119-generic",
		xeon(143, "Intel(R) Xeon(R) Platinum 8469C", "sapphirerapids", nodes(21, "0-47,96-143", "48-95,144-191")...))
	b.driver("570.86.15", "12.8")
	for i, root := range []int{0x10, 0x30, 0x90, 0xb0} {
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ens%dnp0", root), connectX7(), roce400(), machine.RoleFabric,
			switched(root, root+1, 0, bus(root+3), i/2, gen5))
		for j := range 2 {
			b.gpu(h20SXM(), switched(root, root+1, 1+j, bus(root+4+j), i/2, gen5))
		}
	}
	return b
}

// h800 has eight H800, eight ConnectX-7 that udev rules named mlx5_100 to
// mlx5_107 in no order, and one RoCE bond of two ports for storage.
func h800() *build {
	b := start("h800-8ib-bond", "", "5.15.0-119-generic",
		epyc(25, 1, 2, "7763 64-Core Processor", "milan", nodes(32, "0-63,128-191", "64-127,192-255")...))
	b.driver("535.161.08", "12.2")
	names := []int{103, 100, 106, 101, 107, 102, 105, 104}
	for i := range 8 {
		root := 0x20 * i
		b.hca(fmt.Sprintf("mlx5_%d", names[i]), fmt.Sprintf("ib%d", names[i]), connectX7(), ndr(), machine.RoleFabric,
			switched(root, root+1, 0, bus(root+3), i/4, gen4))
		b.gpu(h800SXM(), switched(root, root+1, 1, bus(root+4), i/4, gen4))
	}
	slot := direct(0xf0, "0000:f1:00.0", 1, gen4)
	bond := b.hca("mlx5_bond_0", "bond0", connectX6Dx(), roce100(), machine.RoleStorage, slot)
	bond.BondSlaves = []string{"ens15f0np0", "ens15f1np1"}
	slot.address = "0000:f1:00.1"
	b.function(slot, "0x020000", "0x15b3", connectX6Dx().device, "mlx5_core")
	return b
}
