package main

import (
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
)

// card is a model of GPU.
type card struct {
	product, architecture, compute string
	// device is the PCI device identifier.
	device    string
	memoryMiB int64
	mig       bool
	// registers tells that the GPU registers with the NVLink fabric.
	registers bool
	// links NVLinks of linkMBps each, in 10^6 bytes a second and direction.
	links    int
	linkMBps int64
}

// Memory sizes are what NVML reports, which is less than the HBM's.

func h100SXM() card {
	return card{
		product: "NVIDIA H100 80GB HBM3", architecture: "hopper", compute: "9.0", device: "0x2330",
		memoryMiB: 81559, mig: true, registers: true, links: 18, linkMBps: 26562,
	}
}

// gpu adds a GPU whose links all end in NVSwitches.
func (b *build) gpu(c card, s slot) *machine.GPU {
	b.function(s, "0x030200", "0x10de", c.device, "nvidia")
	i := len(b.m.GPUs)
	g := machine.GPU{
		UUID: "GPU-" + uuid(b.m.Node, "gpu", strconv.Itoa(i)), Index: i, Minor: new(i), PCI: s.address,
		Product: c.product, Architecture: c.architecture, ComputeCapability: c.compute,
		MemoryMiB: c.memoryMiB, ECC: new(true), MIG: machine.MIG{Capable: c.mig},
		Health: machine.Health{State: machine.Healthy},
	}
	if c.links > 0 {
		g.NVLinks = []machine.NVLink{c.to(machine.PeerNVSwitch)}
	}
	if c.registers {
		g.Fabric = &machine.Fabric{ClusterUUID: "00000000-0000-0000-0000-000000000000", State: machine.FabricCompleted}
	}
	b.m.GPUs = append(b.m.GPUs, g)
	return &b.m.GPUs[i]
}

// to is all links of the card to one peer.
func (c card) to(peer string) machine.NVLink {
	return machine.NVLink{Peer: peer, Links: c.links, MBps: new(int64(c.links) * c.linkMBps)}
}

// adapter is a model of HCA.
type adapter struct {
	device, kind, board, firmware string
}

func connectX7() adapter {
	return adapter{device: "0x1021", kind: "MT4129", board: "MT_0000000838", firmware: "28.39.1002"}
}

// link is a kind of port: its layer and its rate when up.
type link struct {
	layer string
	gbps  float64
	rate  string
}

func ndr() link { return link{machine.InfiniBand, 400, "400 Gb/sec (4X NDR)"} }

func roce100() link { return link{machine.Ethernet, 100, "100 Gb/sec (4X EDR)"} }

// hca adds an HCA with one active port.
func (b *build) hca(name, netdev string, a adapter, l link, role machine.Role, s slot) *machine.HCA {
	class := "0x020700"
	if l.layer == machine.Ethernet {
		class = "0x020000"
	}
	b.function(s, class, "0x15b3", a.device, "mlx5_core")
	i := len(b.m.HCAs)
	node := guid(b.m.Node, name)
	port := machine.Port{
		Number: 1, GUID: node, LinkLayer: l.layer, State: machine.PortActive, PhysState: "LinkUp",
		RateGbps: new(l.gbps), Rate: l.rate,
	}
	device := machine.Netdev{Name: netdev, Type: "infiniband", OperState: "up"}
	if l.layer == machine.Ethernet {
		port.GUID, device.Type = linkLocal(b.m.Node, name), "ether"
	} else {
		port.LID, port.SMLID = 0x40+i, 1
	}
	if netdev != "" {
		port.Netdevs = []machine.Netdev{device}
	}
	b.m.HCAs = append(b.m.HCAs, machine.HCA{
		Name: name, PCI: s.address, NodeGUID: node, SysImageGUID: node, Vendor: "0x15b3", Device: a.device,
		Driver: "mlx5_core", Type: a.kind, Board: a.board, Firmware: a.firmware, NodeType: "CA",
		NodeDesc: b.m.Node + " " + name, Role: role, Ports: []machine.Port{port},
		CharDevices: machine.CharDevices{
			UVerbs: numbered("uverbs", i), UMAD: numbered("umad", i), ISSM: numbered("issm", i),
		},
	})
	return &b.m.HCAs[i]
}

// nvswitch adds the PCI function of an NVSwitch.
func (b *build) nvswitch(device string, s slot) {
	b.function(s, "0x068000", "0x10de", device, "nvidia-nvswitch")
}

func xeon(model int, name, codename string, nodes ...machine.NUMANode) machine.CPU {
	return machine.CPU{
		Arch: "amd64", Vendor: "intel", Family: 6, Model: model, ModelName: name, Codename: "intel-xeon-" + codename,
		Sockets: len(nodes), NUMA: nodes,
	}
}

// nodes are NUMA nodes by their lists of processors, all equally far from each
// other.
func nodes(far int, cpus ...string) []machine.NUMANode {
	all := make([]machine.NUMANode, len(cpus))
	for i := range all {
		distances := make([]int, len(cpus))
		for j := range distances {
			distances[j] = far
		}
		distances[i] = 10
		all[i] = machine.NUMANode{ID: i, CPUs: cpus[i], Distances: distances}
	}
	return all
}
