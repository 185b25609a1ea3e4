package main

import (
	"github.com/heddle-dev/heddle/api/machine"
)

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

func connectX6() adapter {
	return adapter{device: "0x101b", kind: "MT4123", board: "MT_0000000223", firmware: "20.39.1002"}
}

func connectX6Dx() adapter {
	return adapter{device: "0x101d", kind: "MT4125", board: "MT_0000000436", firmware: "22.39.1002"}
}

func connectX6Lx() adapter {
	return adapter{device: "0x101f", kind: "MT4127", board: "MT_0000000531", firmware: "26.39.1002"}
}

// The virtual functions of ConnectX-5, -6 and -7, as a guest sees them.

func connectX5VF() adapter {
	return adapter{device: "0x1018", kind: "MT4120", board: "MSF0000000012", firmware: "16.30.1284"}
}

func connectX6VF() adapter {
	return adapter{device: "0x101c", kind: "MT4124", board: "MT_0000000223", firmware: "20.31.1014"}
}

func connectX7VF() adapter {
	return adapter{device: "0x101e", kind: "MT4126", board: "MT_0000000838", firmware: "28.37.1700"}
}

func blueField3() adapter {
	return adapter{device: "0xa2dc", kind: "MT41692", board: "MT_0000000884", firmware: "32.43.1014"}
}

func hdr() link { return link{machine.InfiniBand, 200, "200 Gb/sec (4X HDR)"} }

func ndr() link { return link{machine.InfiniBand, 400, "400 Gb/sec (4X NDR)"} }

func roce400() link { return link{machine.Ethernet, 400, "400 Gb/sec (4X NDR)"} }

func roce25() link { return link{machine.Ethernet, 25, "25 Gb/sec (1X EDR)"} }

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

// down takes the HCA's only port down: no cable, no manager, lowest speed.
func down(h *machine.HCA) {
	p := &h.Ports[0]
	p.State, p.PhysState, p.RateGbps, p.Rate = machine.PortDown, "Polling", new(10.0), "10 Gb/sec (4X SDR)"
	if p.LinkLayer == machine.InfiniBand {
		p.LID, p.SMLID = 0xffff, 0
	} else {
		p.PhysState, p.RateGbps, p.Rate = "Disabled", new(40.0), "40 Gb/sec (4X QDR)"
	}
	for i := range p.Netdevs {
		p.Netdevs[i].OperState = "down"
	}
}

// oneAdapter makes the last two HCAs functions of one adapter.
func (b *build) oneAdapter() {
	last := len(b.m.HCAs) - 1
	b.m.HCAs[last].SysImageGUID = b.m.HCAs[last-1].SysImageGUID
}
