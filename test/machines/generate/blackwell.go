package main

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// gb200Tray is one compute tray of a GB200 NVL72: two Grace, four GPUs of one
// NVLink domain, four ConnectX-7, each in a PCI domain of its own, and the
// Ethernet of a BlueField-3. The kernel names no NUMA node for the HCAs, where
// nvidia-smi shows SYS.
func gb200Tray() *build {
	b := start("gb200-tray", "GB200 NVL", "6.8.0-1028-nvidia-64k", grace())
	b.driver("570.124.06", "12.8")
	for i, domain := range []int{0x08, 0x09, 0x18, 0x19} {
		s := guest(domain, i/2)
		s.address, s.upstream = fmt.Sprintf("%04x:01:00.0", domain), []string{fmt.Sprintf("%04x:00:00.0", domain)}
		g := b.gpu(gb200(), s)
		g.Fabric.ClusterUUID, g.Fabric.CliqueID = uuid("nvl72", "rack 1"), 32766
	}
	names := []string{"ibp3s0", "ibP2p3s0", "ibP16p3s0", "ibP18p3s0"}
	for n, domain := range []int{0x00, 0x02, 0x10, 0x12} {
		s := guest(domain, -1)
		s.address = fmt.Sprintf("%04x:03:00.0", domain)
		for i := range 3 {
			s.upstream = append(s.upstream, fmt.Sprintf("%04x:%02x:00.0", domain, i))
		}
		b.hca(names[n], names[n], connectX7(), ndr(), machine.RoleFabric, s)
	}
	s := guest(0x16, -1)
	s.address, s.upstream = "0016:01:00.0", []string{"0016:00:00.0"}
	b.hca("roceP22p1s0f0", "enP22p1s0f0np0", blueField3(), roce400(), machine.RoleStorage, s)
	return b
}

// hgxB200 has eight B200 and eight ConnectX-7, mlx5_0 to mlx5_7, and the four
// functions mlx5_8 to mlx5_11 by which the NVSwitches are managed.
func hgxB200(node string, at func(i, function int) slot) *build {
	b := start(node, "", "6.8.0-60-generic",
		xeon(207, "INTEL(R) XEON(R) PLATINUM 8570", "emeraldrapids", nodes(21, "0-55,112-167", "56-111,168-223")...))
	b.driver("570.124.06", "12.8")
	for i := range 8 {
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ibs%d", i), connectX7(), ndr(), machine.RoleFabric, at(i, 1))
		b.gpu(b200SXM(), at(i, 0))
	}
	for i := range 4 {
		s := switched(0x05+0x80*(i/2), 0x06+0x80*(i/2), i%2, bus(0x08+0x80*(i/2)+i%2), i/2, gen5)
		h := b.hca(fmt.Sprintf("mlx5_%d", 8+i), "", connectX7(), ndr(), machine.RoleNVSwitch, s)
		h.NodeGUID = fmt.Sprintf("cc40:f303:0027:f6%02x", 0x2e+i)
		h.SysImageGUID, h.Ports[0].GUID = "cc40:f303:0027:f62e", h.NodeGUID
		h.Board, h.NodeDesc = "NVD0000000054", "MT4129 ConnectX7 Mellanox Technologies"
	}
	return b
}

// b200Slot is the slot of a GPU, or of the HCA beside it, under one root port;
// the HCA is behind a second stage when far.
func b200Slot(i, function int, far bool) slot {
	root := []int{0x15, 0x37, 0x48, 0x59, 0x97, 0xb7, 0xc7, 0xd7}[i]
	s := switched(root, root+1, function, bus(root+3+function), i/4, gen5)
	if far && function == 1 {
		s.address = bus(root + 6)
		s.upstream = append(s.upstream, bus(root+4), bus(root+5))
	}
	return s
}

// b200OffNVLink is a node whose GPU 2 did not join the NVLink fabric, from the
// published nvidia-smi table of such a node.
func b200OffNVLink() *build {
	b := hgxB200("b200-one-gpu-off-nvlink", func(i, function int) slot { return b200Slot(i, function, true) })
	g := &b.m.GPUs[2]
	g.NVLinks, g.Fabric.State = nil, machine.FabricNotStarted
	return b
}

// nvswitchFunctions is a sound node of that kind, with HCAs right beside the
// GPUs.
func nvswitchFunctions() *build {
	return hgxB200("nvswitch-functions", func(i, function int) slot { return b200Slot(i, function, false) })
}
