package main

import (
	"fmt"
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
)

// mixed has three L40S and five H100 of the PCIe form, pairs of slots on each
// host bridge, no NVLink, and one dual-port
// Ethernet adapter, which is then all the fabric there is.
func mixed() *build {
	b := start("mixed-l40s-h100", "", "6.8.0-60-generic",
		epyc(25, 17, 2, "9354 32-Core Processor", "genoa", nodes(32, "0-31,64-95", "32-63,96-127")...))
	b.driver("570.124.06", "12.8")
	for i := range 8 {
		c := l40s()
		if i >= 3 {
			c = h100PCIe()
		}
		root := []int{0x00, 0x20, 0x80, 0xa0}[i/2]
		s := direct(root, bus(root+1+0x10*(i%2)), i/4, gen4)
		s.upstream = []string{fmt.Sprintf("0000:%02x:%02x.1", root, 1+2*(i%2))}
		b.gpu(c, s)
	}
	for i := range 2 {
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("enp65s0f%dnp%d", i, i), connectX6Dx(), roce100(),
			machine.RoleFabric, direct(0x40, fmt.Sprintf("0000:41:00.%d", i), 0, gen4))
	}
	b.oneAdapter()
	return b
}

// noGPU is a processor node with a dual-port 25 GbE adapter and one NUMA node,
// where the kernel shows -1 for every function. 25 Gb/s are no fabric.
func noGPU() *build {
	b := start("amd-epyc-no-gpu", "", "6.8.0-60-generic",
		epyc(25, 17, 1, "9354P 32-Core Processor", "genoa", nodes(10, "0-63")...))
	b.noDriver()
	for i := range 2 {
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("enp65s0f%dnp%d", i, i), connectX6Lx(), roce25(),
			machine.RoleManagement, direct(0x40, fmt.Sprintf("0000:41:00.%d", i), -1, gen4))
	}
	b.oneAdapter()
	return b
}

// softRDMA is a guest with two T4 whose only RDMA devices are the kernel's
// soft ones, over Ethernet: nvidia-smi topo fails on such a node.
func softRDMA() *build {
	b := start("soft-rdma-only", "Standard PC (Q35 + ICH9, 2009)", "6.1.0-35-cloud-amd64",
		xeon(85, "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "cascadelake", nodes(10, "0-15")...))
	b.driver("550.163.01", "12.4")
	for i := range 2 {
		s := direct(0x00, bus(1+i), -1, "")
		s.upstream, s.width = []string{fmt.Sprintf("0000:00:01.%d", i)}, 0
		b.gpu(t4(), s)
	}
	b.soft("rxe0", "rdma_rxe", "CA", "eth0")
	b.soft("siw0", "siw", "RNIC", "eth1")
	b.m.HCAs[1].CharDevices = machine.CharDevices{UVerbs: numbered("uverbs", 1)}
	return b
}

// soft adds a soft RDMA device over a network device.
func (b *build) soft(name, driver, nodeType, netdev string) {
	i := len(b.m.HCAs)
	u := bits(3, b.m.Node, name)
	id := fmt.Sprintf("5054:00ff:fe%02x:%02x%02x", u[0], u[1], u[2])
	b.m.HCAs = append(b.m.HCAs, machine.HCA{
		Name: name, NodeGUID: id, SysImageGUID: id, Driver: driver, NodeType: nodeType,
		NodeDesc: name, Virtual: true, Role: machine.RoleVirtual,
		Ports: []machine.Port{{
			Number: 1, GUID: id, LinkLayer: machine.Ethernet, State: machine.PortActive, PhysState: "LinkUp",
			RateGbps: new(2.5), Rate: "2.5 Gb/sec (1X SDR)",
			Netdevs: []machine.Netdev{{Name: netdev, Type: "ether", OperState: "up"}},
		}},
		CharDevices: machine.CharDevices{
			UVerbs: []string{"uverbs" + strconv.Itoa(i)}, UMAD: []string{"umad" + strconv.Itoa(i)},
			ISSM: []string{"issm" + strconv.Itoa(i)},
		},
	})
}
