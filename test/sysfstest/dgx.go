package sysfstest

import "fmt"

// DGXH100 writes a machine like a DGX H100: two sockets, eight PCIe switches
// with a GPU and an InfiniBand HCA (mlx5_0 to mlx5_7, 400 Gb/s) each, and one
// Ethernet HCA for storage (mlx5_8, 100 Gb/s) under the second socket.
func DGXH100(t *Tree) {
	t.t.Helper()
	cpus := []string{"0-55,112-167", "56-111,168-223"}
	for node := range 2 {
		t.Node(node, cpus[node], []string{"10 21", "21 10"}[node])
		for sw := range 4 {
			dgxSwitch(t, 4*node+sw, node, cpus[node])
		}
	}
	dgxStorage(t, cpus[1])
	t.Raw("dev/infiniband/rdma_cm", "")
	t.Attributes("sys/class/dmi/id", map[string]string{"sys_vendor": "NVIDIA", "product_name": "DGXH100"})
	t.CPUInfo("6.8.0-60-generic", xeon(0), xeon(1))
}

// GPUAddress is the PCI address of the DGX's GPU n, and of its HCA one further.
func GPUAddress(n int) string { return fmt.Sprintf("0000:%02x:00.0", 0x13+n*0x20) }

func dgxSwitch(t *Tree, n, node int, cpus string) {
	t.t.Helper()
	bus := 0x10 + n*0x20
	port := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0", bus, bus)
	up := fmt.Sprintf("%s/0000:%02x:00.0", port, bus+1)
	bridge := Function{Class: "0x060400", Vendor: "0x1000", Device: "0xc030", NUMA: node, CPUs: cpus, Driver: "pcieport"}
	bridge.Speed, bridge.Width = "32.0 GT/s PCIe", "16"
	for _, path := range []string{port, up} {
		bridge.Path = path
		t.PCI(bridge)
	}
	for slot, class := range []string{"0x030200", "0x020700"} {
		bridge.Path = fmt.Sprintf("%s/0000:%02x:%02x.0", up, bus+2, slot)
		t.PCI(bridge)
		f := Function{
			Path:  fmt.Sprintf("%s/0000:%02x:00.0", bridge.Path, bus+3+slot),
			Class: class, Vendor: "0x10de", Device: "0x2330", Driver: "nvidia",
			NUMA: node, CPUs: cpus, Speed: "32.0 GT/s PCIe", Width: "16",
		}
		if slot == 1 {
			f.Vendor, f.Device, f.Driver = "0x15b3", "0x1021", "mlx5_core"
		}
		dir := t.PCI(f)
		if slot == 1 {
			t.InfiniBand(dir, n)
		}
	}
}

// InfiniBand writes mlx5_N under a function, as a ConnectX-7 whose port is
// active at 400 Gb/s, with its IPoIB device ibN.
func (t *Tree) InfiniBand(parent string, n int) {
	t.t.Helper()
	guid := fmt.Sprintf("946d:ae03:0012:%02x00", n)
	t.RDMA(parent, RDMA{
		Name: fmt.Sprintf("mlx5_%d", n),
		Attributes: map[string]string{
			"node_guid": guid, "sys_image_guid": guid, "node_type": "1: CA", "fw_ver": "28.39.1002",
			"hca_type": "MT4129", "board_id": "MT_0000000838", "node_desc": fmt.Sprintf("dgx042 mlx5_%d", n),
		},
		Ports: []map[string]string{{
			"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
			"lid": fmt.Sprintf("0x%x", 0x40+n), "sm_lid": "0x1", "gids/0": "fe80:0000:0000:0000:" + guid,
		}},
		UVerbs: n, UMAD: n, ISSM: n,
	})
	t.Net(parent, fmt.Sprintf("ib%d", n), "32", "down", 0)
}

func dgxStorage(t *Tree, cpus string) {
	t.t.Helper()
	const port = "pci0000:e8/0000:e8:01.0"
	f := Function{Path: port, Class: "0x060400", Vendor: "0x8086", Device: "0x352a", NUMA: 1, CPUs: cpus}
	t.PCI(f)
	f.Path, f.Class, f.Vendor, f.Device, f.Driver = port+"/0000:e9:00.0", "0x020000", "0x15b3", "0x101f", "mlx5_core"
	f.Speed, f.Width = "16.0 GT/s PCIe", "16"
	dir := t.PCI(f)
	t.Net(dir, "ens1f0np0", "1", "up", 0)
	t.RDMA(dir, RDMA{
		Name: "mlx5_8",
		Attributes: map[string]string{
			"node_guid": "9803:9b03:0099:0000", "sys_image_guid": "9803:9b03:0099:0000", "node_type": "1: CA",
			"fw_ver": "22.36.1010", "hca_type": "MT4127",
		},
		Ports:  []map[string]string{Ethernet("100 Gb/sec (4X EDR)", "ens1f0np0")},
		UVerbs: 8, UMAD: -1, ISSM: -1,
	})
}

// Ethernet is an active RoCE port on a network device.
func Ethernet(rate, netdev string) map[string]string {
	return map[string]string{
		"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": "Ethernet",
		"lid": "0x0", "sm_lid": "0x0", "gids/0": "fe80:0000:0000:0000:9a03:9bff:fe99:0000",
		"gid_attrs/ndevs/0": netdev, "gid_attrs/types/0": "RoCE v2",
	}
}

func xeon(socket int) string {
	return fmt.Sprintf(`processor	: %d
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8480C
stepping	: 8
physical id	: %d`, socket, socket)
}
