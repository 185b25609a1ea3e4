package main

import (
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
)

// model is a model of GPU.
type model struct {
	product, architecture, compute string
	// device is the PCI device identifier.
	device    string
	memoryMiB int64
	mig       bool
	// registers reports that the GPU registers with the NVLink fabric.
	registers bool
	// links NVLinks of linkMBps each, in 10^6 bytes a second and direction.
	links    int
	linkMBps int64
}

// Memory sizes are what NVML reports, which is less than the HBM's.

func h100SXM() model {
	return model{
		product: "NVIDIA H100 80GB HBM3", architecture: "hopper", compute: "9.0", device: "0x2330",
		memoryMiB: 81559, mig: true, registers: true, links: 18, linkMBps: 26562,
	}
}

func h200SXM() model {
	c := h100SXM()
	c.product, c.device, c.memoryMiB = "NVIDIA H200", "0x2335", 143771
	return c
}

func h20SXM() model {
	c := h100SXM()
	c.product, c.device, c.memoryMiB = "NVIDIA H20", "0x2329", 97871
	return c
}

// h800SXM has eight NVLinks of its eighteen.
func h800SXM() model {
	c := h100SXM()
	c.product, c.device, c.links = "NVIDIA H800", "0x2324", 8
	return c
}

func h100PCIe() model {
	c := h100SXM()
	c.product, c.device, c.links, c.registers = "NVIDIA H100 PCIe", "0x2331", 0, false
	return c
}

func a100SXM() model {
	return model{
		product: "NVIDIA A100-SXM4-40GB", architecture: "ampere", compute: "8.0", device: "0x20b0",
		memoryMiB: 40960, mig: true, links: 12, linkMBps: 25000,
	}
}

func a100PCIe() model {
	c := a100SXM()
	c.product, c.device, c.memoryMiB = "NVIDIA A100 80GB PCIe", "0x20b5", 81920
	return c
}

func b200SXM() model {
	return model{
		product: "NVIDIA B200", architecture: "blackwell", compute: "10.0", device: "0x2901",
		memoryMiB: 183359, mig: true, registers: true, links: 18, linkMBps: 53125,
	}
}

func gb200() model {
	c := b200SXM()
	c.product, c.device, c.memoryMiB = "NVIDIA GB200", "0x2941", 189471
	return c
}

func l40s() model {
	return model{
		product: "NVIDIA L40S", architecture: "ada-lovelace", compute: "8.9", device: "0x26b9", memoryMiB: 46068,
	}
}

func t4() model {
	return model{product: "Tesla T4", architecture: "turing", compute: "7.5", device: "0x1eb8", memoryMiB: 15360}
}

// gpu adds a GPU whose links all end in NVSwitches.
func (b *build) gpu(c model, s slot) *machine.GPU {
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

// to is all links of the model to one peer.
func (c model) to(peer string) machine.NVLink {
	return machine.NVLink{Peer: peer, Links: c.links, MBps: new(int64(c.links) * c.linkMBps)}
}

// nvswitch adds the PCI function of an NVSwitch.
func (b *build) nvswitch(device string, s slot) {
	b.function(s, "0x068000", "0x10de", device, "nvidia-nvswitch")
}
