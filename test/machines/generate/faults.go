package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// h100Pairs has eight H100 and a ConnectX-7 beside each, mlx5_0 to mlx5_7.
func h100Pairs(node string) *build {
	b := start(node, "", "5.15.0-119-generic",
		xeon(143, "Intel(R) Xeon(R) Platinum 8480+", "sapphirerapids", nodes(21, "0-55,112-167", "56-111,168-223")...))
	b.driver("550.163.01", "12.4")
	for i := range 8 {
		root := []int{0x15, 0x37, 0x48, 0x59, 0x97, 0xb7, 0xc7, 0xd7}[i]
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ibp%ds0", root+3), connectX7(), ndr(), machine.RoleFabric,
			switched(root, root+1, 0, bus(root+3), i/4, gen5))
		b.gpu(h100SXM(), switched(root, root+1, 1, bus(root+4), i/4, gen5))
	}
	return b
}

// oneDeadPort is such a node after a bad night: a cable is out, one adapter's
// driver gave up half-way, and one GPU no longer answers; what it was is known
// from before.
func oneDeadPort() *build {
	b := h100Pairs("one-dead-port")
	down(&b.m.HCAs[3])
	b.m.HCAs = append(b.m.HCAs[:5], b.m.HCAs[6:]...)
	b.m.Skipped = []machine.Skipped{{
		Name: "mlx5_5", Reason: "/sys/class/infiniband/mlx5_5 has neither ports nor node_guid: not an RDMA device",
	}}
	b.m.GPUs[6].Health = machine.Health{State: machine.Lost, Reason: "memory: GPU is lost"}
	return b
}

// ipoibDown has eight ConnectX-7 among which the numbers of four Ethernet
// ports are strewn, from the published ibdev2netdev of such a node. All
// InfiniBand ports are active, and all IPoIB devices on them are down; of
// each Ethernet adapter one port has no cable. One Ethernet adapter shares a
// GPU's switch on each socket: near is not the same as fabric.
func ipoibDown() *build {
	b := start("ipoib-down", "", "5.15.0-119-generic",
		xeon(143, "Intel(R) Xeon(R) Platinum 8480+", "sapphirerapids", nodes(21, "0-55,112-167", "56-111,168-223")...))
	b.driver("535.161.08", "12.2")
	number := []int{0, 3, 4, 5, 6, 9, 10, 11}
	for i, nic := range []int{26, 60, 77, 94, 156, 188, 204, 220} {
		root := nic - 5
		h := b.hca(fmt.Sprintf("mlx5_%d", number[i]), fmt.Sprintf("ibp%ds0", nic), connectX7(), ndr(), machine.RoleFabric,
			switched(root, root+1, 1, bus(nic), i/4, gen5))
		h.Ports[0].Netdevs[0].OperState = "down"
		b.gpu(h100SXM(), switched(root, root+1, 0, bus(nic-1), i/4, gen5))
	}
	for i, nic := range []int{27, 157} {
		for port := range 2 {
			s := switched(nic-6, nic-5, 2, fmt.Sprintf("0000:%02x:00.%d", nic, port), i, gen4)
			h := b.hca(fmt.Sprintf("mlx5_%d", []int{1, 7}[i]+port), fmt.Sprintf("enp%ds0f%dnp%d", nic, port, port),
				connectX6(), roce100(), machine.RoleStorage, s)
			if port == 1 {
				down(h)
			}
		}
		b.oneAdapter()
	}
	return b
}
