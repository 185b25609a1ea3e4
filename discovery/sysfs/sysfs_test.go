package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

func TestRead(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Raw("sys/long", strings.Repeat("x", 3*maxAttribute))
	tree.Write("sys/short", "  word ")
	tree.Unreadable("sys/broken")
	f := New(tree.Sys())
	if got, err := f.Read("long"); len(got) != maxAttribute || err != nil {
		t.Errorf("%d bytes of a long file, %v", len(got), err)
	}
	if got, err := f.Read("short"); got != "word" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, err := f.Read("none")
	if !errors.Is(err, fs.ErrNotExist) || !Unknown(err) || !strings.Contains(err.Error(), tree.Sys()+"/none") {
		t.Errorf("missing file: %v", err)
	}
	if _, err = f.Read("broken"); err == nil || Unknown(err) {
		t.Errorf("broken file: %v", err)
	}
}

func TestLink(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Link("sys/class/net/eth0", "sys/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0")
	tree.Dir("sys/class/net/plain")
	if err := os.Symlink(filepath.Join(tree.Sys(), "devices/x"), filepath.Join(tree.Sys(), "absolute")); err != nil {
		t.Fatal(err)
	}
	f := New(tree.Sys() + "/")
	for name, want := range map[string]string{
		"class/net/eth0":  "devices/pci0000:00/0000:00:03.0/virtio0/net/eth0",
		"class/net/plain": "",
		"class/net/none":  "",
		"absolute":        "devices/x",
	} {
		if got := f.Link(name); got != want {
			t.Errorf("Link(%q) = %q, want %q", name, got, want)
		}
	}
	if got := ParsePlace(f.Link("class/net/eth0")).Function(); got != "0000:00:03.0" {
		t.Errorf("virtio NIC is on %q", got)
	}
}

func TestParsePlace(t *testing.T) {
	for path, want := range map[string]Place{
		"devices/pci0000:10/0000:10:01.0/0000:11:00.0/net/eth0": {
			Root: "pci0000:10", Functions: []string{"0000:10:01.0", "0000:11:00.0"},
		},
		"devices/pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0": { // VMD
			Root: "pci0000:64", Functions: []string{"0000:64:05.5", "10000:00:02.0", "10000:01:00.0"},
		},
		"devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/4b7a/pci4b7a:00/4b7a:00:02.0": { // Hyper-V
			Root: "pci4b7a:00", Functions: []string{"4b7a:00:02.0"},
		},
		"devices/virtual/infiniband/rxe0": {Virtual: true},
		"devices/platform/HISI00D1:00":    {},
		"":                                {},
	} {
		if diff := cmp.Diff(want, ParsePlace(path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestPCIOfInterest(t *testing.T) {
	tree := sysfstest.New(t)
	add := func(path, class, vendor, device string) {
		tree.PCI(sysfstest.Function{Path: path, Class: class, Vendor: vendor, Device: device, NUMA: -1})
	}
	add("pci0000:00/0000:00:01.0", "0x060400", "0x10de", "0x22a3")              // a bridge
	add("pci0000:00/0000:00:01.0/0000:01:00.0", "0x030200", "0x10de", "0x2330") // a GPU
	add("pci0000:00/0000:00:02.0", "0x010802", "0x144d", "0xa824")              // a disk
	add("pci0000:00/0000:00:03.0", "0x068000", "0x10de", "0x22a3")              // an NVSwitch
	add("pci0000:00/0000:00:04.0", "0x068000", "0x8086", "0x0000")              // some other bridge
	add("pci0000:00/0000:00:05.0", "0x080100", "0x15b3", "0x2100")              // a DMA function
	add("pci0000:00/0000:00:06.0", "0xff0000", "0x1ded", "0x107f")              // eRDMA, class "other"
	add("pci0000:00/0000:00:07.0", "0xff0000", "0x1ded", "0x107f")              // one without a driver
	add("pci0000:00/0000:00:08.0", "0x120000", "0x1002", "0x74a1")              // MI300X
	add("pci0000:00/0000:00:09.0", "0x0b4000", "0x8086", "0x4940")              // a co-processor
	add("pci0000:00/0000:00:0a.0", "0x020000", "0x17db", "0x0501")              // Slingshot
	add("pci10000:00/10000:00:02.0/10000:e1:00.0", "0x020000", "0x8086", "0x1592")
	tree.Dir("sys/bus/pci/devices/+nonsense")
	got, skipped, err := New(tree.Sys()).PCI(map[string]bool{"0000:00:06.0": true}, gpu.Vendors{{PCI: gpu.PCI{Vendor: "0x10de", Switches: []string{"0x0680"}}}})
	var addresses []string
	for _, f := range got {
		addresses = append(addresses, f.Address)
	}
	want := []string{"0000:00:03.0", "0000:00:05.0", "0000:00:06.0", "0000:00:07.0", "0000:00:08.0", "0000:00:09.0", "0000:00:0a.0", "0000:01:00.0", "10000:e1:00.0"}
	if diff := cmp.Diff(want, addresses); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if len(skipped) != 1 || skipped[0].Name != "+nonsense" {
		t.Errorf("skipped %v", skipped)
	}
	wide := got[len(got)-1]
	if wide.Root != "pci10000:00" || cmp.Diff([]string{"10000:00:02.0"}, wide.Upstream) != "" || wide.NUMA != nil {
		t.Errorf("%+v", wide)
	}
}

// A bus as large as those of machines with many virtual functions, with links
// that lead in circles.
// A link can do what both of its ends can; a port that is not the slot shows nothing.
func TestLinkCapability(t *testing.T) {
	for _, tt := range []struct {
		name, port, portSpeed, portWidth string
		speed                            string
		width                            int
	}{
		{"as fast as its port", "0x8086", "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", 16},
		{"a slower slot", "0x8086", "16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", 16},
		{"a narrow slot", "0x8086", "32.0 GT/s PCIe", "8", "32.0 GT/s PCIe", 8},
		{"a faster slot", "0x8086", "64.0 GT/s PCIe", "32", "32.0 GT/s PCIe", 16},
		{"a port without a link", "0x8086", "Unknown", "255", "", 0},
		{"a port of QEMU", "0x1b36", "16.0 GT/s PCIe", "32", "", 0},
		{"a port of VMware", "0x15ad", "2.5 GT/s PCIe", "32", "", 0},
		{"a port with another link", "0x1234", "32.0 GT/s PCIe", "16", "", 0},
		{"a port of the GPU's maker", "0x10de", "16.0 GT/s PCIe", "1", "", 0},
	} {
		tree := sysfstest.New(t)
		const port = "pci0000:10/0000:10:01.0"
		dir := tree.PCI(sysfstest.Function{Path: port, Class: "0x060400", Vendor: tt.port, Device: "0x352a"})
		width := map[bool]string{true: "4", false: "8"}[tt.port == "0x1234"]
		tree.Attributes(dir, map[string]string{
			"max_link_speed": tt.portSpeed, "max_link_width": tt.portWidth, "current_link_width": width,
		})
		dir = tree.PCI(sysfstest.Function{
			Path: port + "/0000:11:00.0", Class: "0x030200", Vendor: "0x10de", Device: "0x2330",
			Speed: "2.5 GT/s PCIe", Width: "8",
		})
		tree.Attributes(dir, map[string]string{"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"})
		functions, skipped, err := New(tree.Sys()).PCI(nil, nil)
		if err != nil || len(skipped) > 0 || len(functions) != 1 {
			t.Fatalf("%s: %+v, %+v, %v", tt.name, functions, skipped, err)
		}
		f := functions[0]
		if f.MaxLinkSpeed != tt.speed || f.MaxLinkWidth != tt.width || f.LinkWidth != 8 {
			t.Errorf("%s: %q x%d, want %q x%d", tt.name, f.MaxLinkSpeed, f.MaxLinkWidth, tt.speed, tt.width)
		}
	}
}

func TestLargeBus(t *testing.T) {
	const count = 10000
	tree := sysfstest.New(t)
	for n := range count {
		dir := fmt.Sprintf("sys/bus/pci/devices/%04x:%02x:%02x.%x", n>>11, n>>8&7, n>>3&31, n&7)
		tree.Write(dir+"/class", "0x088000")
		tree.Write(dir+"/vendor", "0x8086")
	}
	gpu := tree.PCI(sysfstest.Function{Path: "pci0000:ff/0000:ff:01.0", Class: "0x030200", Vendor: "0x10de", Device: "0x2330"})
	tree.Link("sys/bus/pci/devices/0000:fe:00.0", "sys/bus/pci/devices/0000:fe:00.0")
	tree.Link(gpu+"/driver", gpu+"/driver")
	got, skipped, err := New(tree.Sys()).PCI(nil, nil)
	if err != nil || len(got) != 1 || got[0].Address != "0000:ff:01.0" {
		t.Errorf("%v, %v", got, err)
	}
	if len(skipped) != 1 || skipped[0].Name != "0000:fe:00.0" {
		t.Errorf("skipped %v", skipped)
	}
	tree.Remove("sys/bus/pci/devices")
	tree.Link("sys/bus/pci/devices", "sys/bus/pci/devices")
	if _, _, err := New(tree.Sys()).PCI(nil, nil); err == nil {
		t.Error("an unreadable bus returns no error")
	}
}

func TestNUMA(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Node(0, "0-71", "10 40 80")
	tree.Node(1, "", "40 10 80") // A GPU's memory on Grace.
	tree.Node(10, "x", "")
	tree.Node(2, "", "80 80 10") // It comes after node10.
	tree.Write("sys/devices/system/node/has_cpu", "0")
	tree.Write("sys/devices/system/node/online", "0-1")
	got, skipped, err := New(tree.Sys()).NUMA()
	want := []machine.NUMANode{
		{ID: 0, CPUs: "0-71", Distances: []int{10, 40, 80}},
		{ID: 1, Distances: []int{40, 10, 80}},
		{ID: 2, Distances: []int{80, 80, 10}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if len(skipped) != 1 || skipped[0].Name != "node10" {
		t.Errorf("skipped %v", skipped)
	}
}

func TestInterfaces(t *testing.T) {
	tree := sysfstest.New(t)
	nic := tree.PCI(sysfstest.Function{Path: "pci0000:00/0000:00:03.0", Class: "0x020000", Vendor: "0x1af4", Device: "0x1041"})
	tree.Net(nic+"/virtio0", "eth0", "1", "up", 0)
	pf := tree.PCI(sysfstest.Function{Path: "pci0000:00/0000:00:04.0", Class: "0x020000", Vendor: "0x15b3", Device: "0x1021"})
	tree.Net(pf, "ens1f0", "1", "up", 1)
	tree.Write(tree.Net(pf, "ens1f0_0", "1", "up", 0)+"/phys_port_name", "pf0vf0")
	tree.Net(pf, "ens2f0", "1", "up", 0)
	tree.Bond("bond0", "up", "ens1f0", "ens2f0")
	f := New(tree.Sys())
	got, err := f.Interfaces("0000:00:03.0")
	want := []Interface{{Netdev: machine.Netdev{Name: "eth0", Type: "ether", OperState: "up"}, Port: 1}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("virtio: %v (-want +got):\n%s", err, diff)
	}
	got, err = f.Interfaces("0000:00:04.0")
	if err != nil || len(got) != 3 || got[0].Port != 2 || !got[1].Representor || got[2].Representor {
		t.Errorf("%+v, %v", got, err)
	}
	if diff := cmp.Diff([]string{"ens1f0", "ens2f0"}, f.Slaves("bond0")); diff != "" || f.Master("ens2f0") != "bond0" {
		t.Errorf("master %q, slaves (-want +got):\n%s", f.Master("ens2f0"), diff)
	}
}

// vpd is vital product data with these read-only keywords.
func vpd(keywords ...string) []byte {
	var body bytes.Buffer
	for i := 0; i+1 < len(keywords); i += 2 {
		body.WriteString(keywords[i])
		body.WriteByte(byte(len(keywords[i+1])))
		body.WriteString(keywords[i+1])
	}
	data := []byte{0x82, 4, 0, 'C', 'X', '-', '8', 0x90, byte(body.Len()), byte(body.Len() >> 8)}
	return append(append(data, body.Bytes()...), 0x78)
}

func TestParseVPD(t *testing.T) {
	got, err := parseVPD(vpd("PN", "900-9X81E", "V3", "80fe3ea5b7d9ef118000946dae123456"))
	if diff := cmp.Diff(VPD{V3: "80fe3ea5b7d9ef118000946dae123456"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err = parseVPD(vpd("PN", "x", "VA", "MLX:MODL=SW_MNG"))
	if !got.SwitchManagement || got.V3 != "" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = parseVPD(append([]byte{0x0a, 1, 2}, vpd("V3", "x")...)); got.V3 != "x" || err != nil {
		t.Errorf("after a small resource: %+v, %v", got, err)
	}
	if _, err := parseVPD([]byte{0x90, 4}); err == nil {
		t.Error("a truncated resource returns no error")
	}
}
