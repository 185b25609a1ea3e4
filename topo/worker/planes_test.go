package worker

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// TestPlanesOfAnXDRAdapter scans a tree as the kernel writes it for a
// ConnectX-8 of four planes: mlx5_0 with 800 Gb/s and verbs, smi1 on the same
// function with a port and a umad for each plane and without verbs.
func TestPlanesOfAnXDRAdapter(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Node(0, "0-7", "10")
	nic := sysfstest.Function{Class: "0x020700", Vendor: "0x15b3", Device: "0x1023", Driver: "mlx5_core", NUMA: 0}
	for i := range 2 {
		nic.Path = fmt.Sprintf("pci0000:0%d/0000:0%d:00.0", i, i)
		dir := tree.PCI(nic)
		port := func(rate string) map[string]string {
			return map[string]string{
				"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": "InfiniBand", "lid": "0x4", "sm_lid": "0x1",
			}
		}
		plane := port("200 Gb/sec (1X XDR)")
		guid := map[string]string{"node_guid": fmt.Sprintf("946d:ae03:0012:0%d00", i), "node_type": "1: CA"}
		tree.RDMA(dir, sysfstest.RDMA{
			Name: fmt.Sprintf("mlx5_%d", i), UVerbs: i, UMAD: 5 * i, ISSM: -1, Attributes: guid,
			Ports: []map[string]string{port("800 Gb/sec (4X XDR)")},
		})
		tree.RDMA(dir, sysfstest.RDMA{
			Name: fmt.Sprintf("smi%d", i), UVerbs: -1, UMAD: 5*i + 1, ISSM: -1, Attributes: guid,
			Ports: []map[string]string{plane, plane, plane, plane},
		})
	}
	scan := host.New(host.Options{
		NodeName: "n1", SysfsRoot: tree.Sys(), DevRoot: tree.Dev(), ProcRoot: tree.Proc(),
	})
	m := scan.Scan(t.Context())
	for i := range m.HCAs { // Without GPUs every HCA is storage.
		if len(m.HCAs[i].CharDevices.UVerbs) > 0 {
			m.HCAs[i].Role = machine.RoleFabric
		}
	}
	ports, omitted := Ports(m, nil)
	var got []string
	for _, p := range ports {
		got = append(got, fmt.Sprint(p.Role, " ", show([]Port{p}), " ", p.ID, " ", p.UMAD, " ", p.RateGbps, " ", p.LinkState))
	}
	want := []string{
		"fabric 0.0=mlx5_0/1@ 0000:00:00.0 [umad1] 200 Active", "fabric 0.1=mlx5_0/2@ 0000:00:00.0 [umad2] 200 Active",
		"fabric 0.2=mlx5_0/3@ 0000:00:00.0 [umad3] 200 Active", "fabric 0.3=mlx5_0/4@ 0000:00:00.0 [umad4] 200 Active",
		"fabric 1.0=mlx5_1/1@ 0000:01:00.0 [umad6] 200 Active", "fabric 1.1=mlx5_1/2@ 0000:01:00.0 [umad7] 200 Active",
		"fabric 1.2=mlx5_1/3@ 0000:01:00.0 [umad8] 200 Active", "fabric 1.3=mlx5_1/4@ 0000:01:00.0 [umad9] 200 Active",
	}
	if diff := cmp.Diff(want, got); diff != "" || omitted != 0 {
		t.Errorf("%d omitted (-want +got):\n%s", omitted, diff)
	}
}

func TestVirtualFunctionsAreKnownInVirtualMachines(t *testing.T) {
	for device, want := range map[string]bool{
		"0x101e": true, "0x101c": true, "0x1018": true, "0x1012": true,
		"0x1021": false, "0x1023": false, "0x101b": false, "0x101f": false, "0xa2dc": false, "": false,
	} {
		if got := isVF(&machine.HCA{Vendor: "0x15b3", Device: device}); got != want {
			t.Errorf("%s: %v", device, got)
		}
	}
	if isVF(&machine.HCA{Vendor: "0x8086", Device: "0x1018"}) {
		t.Error("another vendor's device")
	}
}
