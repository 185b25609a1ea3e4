package main

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
)

// amdModel is a model of AMD's GPUs. simds are those of one GPU, dies its compute
// dies (XCC), of which CPX makes a partition each.
type amdModel struct {
	product, architecture, class, device string
	memoryMiB                            int64
	simds, dies                          int
	linkMBps                             int64
}

func mi210() amdModel {
	return amdModel{
		product: "AMD Instinct MI210", architecture: "cdna2", class: "0x038000", device: "0x740f",
		memoryMiB: 65520, simds: 416, dies: 1, linkMBps: 50000,
	}
}

// mi250x is one of the two dies of the module, each of which is a GPU.
func mi250x() amdModel {
	c := mi210()
	c.product, c.device, c.simds = "AMD Instinct MI250X", "0x7408", 440
	return c
}

func mi300x() amdModel {
	return amdModel{
		product: "AMD Instinct MI300X OAM", architecture: "cdna3", class: "0x120000", device: "0x74a1",
		memoryMiB: 196592, simds: 1216, dies: 8, linkMBps: 64000,
	}
}

func mi308x() amdModel {
	c := mi300x()
	c.product, c.device, c.simds, c.dies = "AMD Instinct MI308X OAM", "0x74a2", 320, 4
	return c
}

// startAMD begins a machine with AMD's driver and no other.
func startAMD(node, version string, cpu machine.CPU) *build {
	b := start(node, "", "6.8.0-60-generic", cpu)
	b.noDriver()
	b.probe("kfd", machine.ProbeOK, "")
	b.driver(version, "")
	b.m.Driver.Vendor = "amd.com"
	return b
}

// amd adds a GPU. The driver reserves a render node for each possible partition.
func (b *build) amd(c amdModel, s slot) {
	b.function(s, c.class, "0x1002", c.device, "amdgpu")
	i := len(b.m.GPUs)
	id := fmt.Sprintf("%x", bits(8, b.m.Node, "gpu", strconv.Itoa(i)))
	g := machine.GPU{
		Vendor: "amd.com", UUID: "GPU-" + id, Index: i, Minor: new(128 + i*c.dies), PCI: s.address,
		Product: c.product, Architecture: c.architecture, MemoryMiB: c.memoryMiB,
		Health: machine.Health{State: machine.Healthy},
		Attributes: map[string]string{
			"device-id": c.device[2:], "family": "AI", "product-name": underscored(c.product),
			"simd-count": strconv.Itoa(c.simds), "cu-count": strconv.Itoa(c.simds / 4),
			"vram":                           fmt.Sprintf("%dG", (c.memoryMiB+512)/1024),
			"compute-partitioning-supported": strconv.FormatBool(c.dies > 1),
			"memory-partitioning-supported":  strconv.FormatBool(c.dies > 1),
			"compute-memory-partition":       "",
		},
	}
	if c.dies > 1 {
		g.MIG = machine.MIG{Capable: true, Mode: "SPX/NPS1"}
		g.Attributes["compute-memory-partition"] = "spx_nps1"
	}
	b.m.GPUs = append(b.m.GPUs, g)
}

func underscored(s string) string {
	out := []byte(s)
	for i := range out {
		if out[i] == ' ' {
			out[i] = '_'
		}
	}
	return string(out)
}

// cpx cuts every GPU into its dies, of a fourth of the memory for each two.
func (b *build) cpx(c amdModel) {
	for i := range b.m.GPUs {
		g := &b.m.GPUs[i]
		g.MIG = machine.MIG{Capable: true, Enabled: true, Mode: "CPX/NPS4"}
		each := c.memoryMiB / int64(c.dies)
		for p := range c.dies {
			g.MIG.Devices = append(g.MIG.Devices, machine.MIGDevice{
				UUID: fmt.Sprintf("%s-p%d", g.UUID, p), Profile: "cpx_nps4", MemoryMiB: each,
				Multiprocessors: c.simds / c.dies / 4, GPUSlices: 1, ComputeSlices: 1, Minor: new(*g.Minor + p),
			})
		}
		g.Attributes["compute-memory-partition"] = "cpx_nps4"
		g.Attributes["simd-count"] = strconv.Itoa(c.simds / c.dies)
		g.Attributes["cu-count"] = strconv.Itoa(c.simds / c.dies / 4)
		g.Attributes["vram"] = fmt.Sprintf("%dG", (each+512)/1024)
		for j := range g.NVLinks {
			g.NVLinks[j].MBps = nil // The driver reports none between partitions.
		}
	}
}

// mesh joins GPUs, by index, each with each by one link.
func (b *build) mesh(c amdModel, gpus ...int) {
	for _, i := range gpus {
		for _, j := range gpus {
			if i != j {
				b.xgmi(i, j, c.linkMBps)
			}
		}
	}
}

// xgmi adds a link to i's side.
func (b *build) xgmi(i, j int, mbps int64) {
	g := &b.m.GPUs[i]
	l := machine.NVLink{Kind: "XGMI", Peer: b.m.GPUs[j].PCI, Links: 1, MBps: new(mbps)}
	g.NVLinks = append(g.NVLinks, l)
	slices.SortFunc(g.NVLinks, func(a, b machine.NVLink) int { return machine.ComparePCI(a.Peer, b.Peer) })
}

// amdMI210 has two hives of four, bridged each with each, one to a socket; PCI
// addresses, hives and bandwidths of ROCm/k8s-device-plugin's
// testdata/topo-mi210-xgmi-pcie. Two GPUs and an HCA to a switch are made up.
func amdMI210() *build {
	b := startAMD("amd-mi210-two-hives", "6.8.5",
		epyc(25, 1, 2, "7763 64-Core Processor", "milan", nodes(32, "0-63,128-191", "64-127,192-255")...))
	for i, pair := range [][2]int{{0x63, 0x43}, {0x03, 0x26}, {0xe3, 0xc3}, {0x83, 0xa3}} {
		root := pair[0] &^ 0x1f
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("ibp%d", i), connectX6(), hdr(), machine.RoleFabric,
			switched(root, root+1, 0, bus(root+0x10), i/2, gen4))
		for j, at := range pair {
			b.amd(mi210(), switched(root, root+1, 1+j, bus(at), i/2, gen4))
		}
	}
	b.mesh(mi210(), 0, 1, 2, 3)
	b.mesh(mi210(), 4, 5, 6, 7)
	return b
}

// amdMI250X is a node of four modules with two dies each, with a Slingshot
// adapter beside each module and no HCA. Which dies are one hop apart is from memory
// of such nodes, not from a file, and how many links they have is not known.
func amdMI250X() *build {
	b := startAMD("amd-mi250x-slingshot", "6.7.0", epyc(25, 48, 1, "7A53 64-Core Processor", "trento",
		nodes(12, "0-15,64-79", "16-31,80-95", "32-47,96-111", "48-63,112-127")...))
	b.m.CPU.Sockets = 1
	numa := []int{3, 3, 1, 1, 0, 0, 2, 2}
	for i, at := range []int{0xc1, 0xc6, 0xc9, 0xce, 0xd1, 0xd6, 0xd9, 0xde} {
		b.amd(mi250x(), direct(at-1, bus(at), numa[i], gen4))
		if i%2 == 0 {
			b.function(direct(at+1, bus(at+2), numa[i], gen4), "0x020000", "0x17db", "0x0501", "cxi_ss1")
		}
	}
	for _, pair := range [][2]int{
		{0, 1}, {0, 2}, {0, 6}, {1, 3}, {1, 5}, {2, 3}, {2, 4}, {3, 7}, {4, 5}, {4, 6}, {5, 7}, {6, 7},
	} {
		b.mesh(mi250x(), pair[:]...)
	}
	return b
}

// oam is a baseboard of eight modules, each joined with each, and an HCA beside
// each; addresses of the GPUs as rccl-tests print them on such nodes.
func (b *build) oam(c amdModel, a adapter, l link) {
	for i, at := range []int{0x05, 0x27, 0x47, 0x65, 0x85, 0xa7, 0xc7, 0xe5} {
		root := at &^ 0x1f
		b.hca(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("net%d", i), a, l, machine.RoleFabric,
			switched(root, root+1, 0, bus(root+3), i/4, gen5))
		b.amd(c, switched(root, root+1, 1, bus(at), i/4, gen5))
	}
	b.mesh(c, 0, 1, 2, 3, 4, 5, 6, 7)
}

func genoa() machine.CPU {
	return epyc(25, 17, 2, "9534 64-Core Processor", "genoa", nodes(32, "0-63,128-191", "64-127,192-255")...)
}

func amdMI300X() *build {
	b := startAMD("amd-mi300x", "6.12.12", genoa())
	b.oam(mi300x(), connectX7(), ndr())
	return b
}

// amdMI300XCPX is the same baseboard with all GPUs cut into 8 partitions.
func amdMI300XCPX() *build {
	b := startAMD("amd-mi300x-cpx", "6.12.12", genoa())
	b.oam(mi300x(), connectX7(), ndr())
	b.cpx(mi300x())
	return b
}

func amdMI308X() *build {
	b := startAMD("amd-mi308x-roce", "6.10.5", genoa())
	b.oam(mi308x(), connectX7(), roce400())
	return b
}

// amdPCIe is two MI210 without a bridge: no hive and no XGMI.
func amdPCIe() *build {
	b := startAMD("amd-mi210-pcie", "6.2.4",
		epyc(25, 1, 2, "7763 64-Core Processor", "milan", nodes(32, "0-63,128-191", "64-127,192-255")...))
	b.amd(mi210(), direct(0x20, bus(0x23), 0, gen4))
	b.amd(mi210(), direct(0xc0, bus(0xc3), 1, gen4))
	b.hca("mlx5_0", "ens1np0", connectX6Dx(), roce100(), machine.RoleFabric, direct(0x40, bus(0x41), 0, gen4))
	return b
}

// twoMakers is a node with two cards of NVIDIA and one of AMD.
func twoMakers() *build {
	b := start("two-makers", "", "6.8.0-60-generic",
		epyc(25, 1, 2, "7763 64-Core Processor", "milan", nodes(32, "0-63,128-191", "64-127,192-255")...))
	b.driver("550.163.01", "12.4")
	b.m.AddDriver(machine.Driver{Version: "6.10.5", Vendor: "amd.com"})
	b.probe("kfd", machine.ProbeOK, "")
	b.gpu(l40s(), direct(0x20, bus(0x23), 0, gen4))
	b.gpu(l40s(), direct(0x60, bus(0x63), 0, gen4))
	b.amd(mi210(), direct(0xc0, bus(0xc3), 1, gen4))
	b.hca("mlx5_0", "ens1np0", connectX6Dx(), roce100(), machine.RoleFabric, direct(0x40, bus(0x41), 0, gen4))
	return b
}
