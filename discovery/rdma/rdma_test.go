package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

func read(t *testing.T, tree *sysfstest.Tree) machine.Machine {
	t.Helper()
	got := New(sysfs.New(tree.Sys()), tree.Dev(), 0).Read(t.Context())
	if got.Probes[0].State != machine.ProbeOK {
		t.Fatal(got.Probes)
	}
	return got
}

func nic(path string) sysfstest.Function {
	return sysfstest.Function{Path: path, Class: "0x020000", Vendor: "0x15b3", Device: "0x1021", Driver: "mlx5_core", NUMA: 0}
}

// A dual-port HCA: each port has its own network device, by dev_port, and its
// own umad and issm; the InfiniBand port's GUID is not the node's.
func TestDualPort(t *testing.T) {
	tree := sysfstest.New(t)
	dir := tree.PCI(nic("pci0000:00/0000:00:04.0"))
	tree.Net(dir, "ib10", "32", "down", 0)
	tree.Net(dir, "ib2", "32", "down", 0)
	tree.Net(dir, "eth5", "1", "up", 1)
	tree.RDMA(dir, sysfstest.RDMA{
		Name: "mlx4_0", UVerbs: 0, UMAD: 0, ISSM: 0,
		Attributes: map[string]string{"node_guid": "0002:C903:0000:1234", "node_type": "1: CA"},
		Ports: []map[string]string{
			{
				"state": "2: INIT", "phys_state": "5: LinkUp", "rate": "56 Gb/sec (4X FDR)", "link_layer": "InfiniBand",
				"lid": "0x0", "sm_lid": "0x0", "gids/0": "fe80:0000:0000:0000:0002:c903:0000:1235",
			},
			{"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "40 Gb/sec (4X QDR)", "link_layer": "Ethernet"},
		},
	})
	got := read(t, tree)
	want := []machine.HCA{{
		Name: "mlx4_0", PCI: "0000:00:04.0", NodeGUID: "0002:c903:0000:1234", NodeType: "CA",
		Ports: []machine.Port{
			{
				Number: 1, GUID: "0002:c903:0000:1235", LinkLayer: machine.InfiniBand, State: machine.PortInit, PhysState: "LinkUp",
				RateGbps: new(56.0), Rate: "56 Gb/sec (4X FDR)",
				Netdevs: []machine.Netdev{
					{Name: "ib2", Type: "infiniband", OperState: "down"}, {Name: "ib10", Type: "infiniband", OperState: "down"},
				},
			},
			{
				Number: 2, LinkLayer: machine.Ethernet, State: machine.PortActive, PhysState: "LinkUp", RateGbps: new(40.0),
				Rate: "40 Gb/sec (4X QDR)", Netdevs: []machine.Netdev{{Name: "eth5", Type: "ether", OperState: "up"}},
			},
		},
		CharDevices: machine.CharDevices{
			UVerbs: []string{"uverbs0"}, UMAD: []string{"umad0", "umad1"}, ISSM: []string{"issm0", "issm1"},
		},
	}}
	if diff := cmp.Diff(want, got.HCAs); diff != "" || len(got.Skipped) != 0 {
		t.Errorf("skipped %v (-want +got):\n%s", got.Skipped, diff)
	}
}

func TestBond(t *testing.T) {
	for _, tt := range []struct {
		name, netdev string
		before       []map[string]string
	}{
		{"GID 0 names the bond", "bond0", nil},
		{"GID 0 names the active slave", "ens1f1np1", nil},
		{"the second port, after one of InfiniBand", "bond0", []map[string]string{{"link_layer": "InfiniBand"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			dir := tree.PCI(nic("pci0000:00/0000:3a:00.0"))
			second := tree.PCI(nic("pci0000:00/0000:3a:00.1"))
			tree.Net(dir, "ens1f0np0", "1", "up", 0)
			tree.Net(second, "ens1f1np1", "1", "up", 0)
			tree.Bond("bond0", "up", "ens1f0np0", "ens1f1np1")
			tree.RDMA(dir, sysfstest.RDMA{
				Name: "mlx5_bond_0", UVerbs: 0, UMAD: -1, ISSM: -1, Attributes: map[string]string{"node_type": "1: CA"},
				Ports: append(tt.before, sysfstest.Ethernet("200 Gb/sec (4X HDR)", tt.netdev)),
			})
			h := read(t, tree).HCAs[0]
			if diff := cmp.Diff([]string{"ens1f0np0", "ens1f1np1"}, h.BondSlaves); diff != "" || h.PCI != "0000:3a:00.0" {
				t.Errorf("on %q, slaves (-want +got):\n%s", h.PCI, diff)
			}
			if got := h.Ports[len(tt.before)].Netdevs; len(got) != 1 || got[0].Name != tt.netdev {
				t.Errorf("network devices %v", got)
			}
		})
	}
}

// Clouds put a customer's partition first.
func TestDefaultPartition(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pkeys []string
		want  int
	}{
		{"alone", []string{"0xffff", "0x0000"}, 0},
		{"limited, after a customer's", []string{"0x800b", "0x7fff", "0x0000"}, 1},
		{"none", []string{"0x800b", "0x0000"}, 0},
		{"unreadable", nil, 0},
	} {
		tree := sysfstest.New(t)
		port := map[string]string{"state": "4: ACTIVE", "link_layer": "InfiniBand"}
		for i, key := range tt.pkeys {
			port[fmt.Sprintf("pkeys/%d", i)] = key
		}
		tree.RDMA(tree.PCI(nic("pci0000:00/0000:05:00.0")), sysfstest.RDMA{
			Name: "mlx5_0", UVerbs: -1, UMAD: -1, ISSM: -1, Ports: []map[string]string{port},
		})
		if got := read(t, tree).HCAs[0].Ports[0].PKeyIndex; got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// Devices whose drivers write less, or lie elsewhere, than mlx5's.
func TestOddDrivers(t *testing.T) {
	tree := sysfstest.New(t)
	tree.RDMA(tree.PCI(nic("pci0000:00/0000:05:00.0")), sysfstest.RDMA{ // No node_guid, no gids.
		Name: "hfi1_0", UVerbs: -1, UMAD: -1, ISSM: -1, Attributes: map[string]string{"board_id": "HPE 100Gb", "fw_ver": "1.27.0"},
		Ports: []map[string]string{{"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "InfiniBand", "lid": "0x1"}},
	})
	// A subfunction: the RDMA device hangs on an auxiliary device.
	pf := tree.PCI(nic("pci0000:00/0000:08:00.0"))
	tree.RDMA(pf+"/mlx5_core.sf.4", sysfstest.RDMA{Name: "mlx5_4", UVerbs: 4, UMAD: -1, ISSM: -1, Ports: []map[string]string{{}}})
	// siw of kernels before 5.11 is a child of the NIC.
	tree.RDMA(pf, sysfstest.RDMA{
		Name: "siw0", UVerbs: 5, UMAD: -1, ISSM: -1,
		Attributes: map[string]string{"node_type": "4: RNIC", "node_desc": "Software iWARP stack"}, Ports: []map[string]string{{}},
	})
	tree.RDMA("sys/devices/virtual", sysfstest.RDMA{Name: "soft9", UVerbs: 6, UMAD: -1, ISSM: -1, Ports: []map[string]string{{}}})
	// Huawei's integrated NIC is a platform device.
	tree.RDMA("sys/devices/platform/HISI00D1:00", sysfstest.RDMA{Name: "hns_0", UVerbs: 7, UMAD: -1, ISSM: -1, Ports: []map[string]string{{}}})
	type place struct {
		PCI, Driver string
		Virtual     bool
	}
	got := map[string]place{}
	found := read(t, tree)
	for _, h := range found.HCAs {
		got[h.Name] = place{h.PCI, h.Driver, h.Virtual}
	}
	want := map[string]place{
		"hfi1_0": {PCI: "0000:05:00.0"},
		"mlx5_4": {PCI: "0000:08:00.0"},
		"siw0":   {Driver: "siw", Virtual: true},
		"soft9":  {Virtual: true},
		"hns_0":  {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(found.Skipped) != 1 || found.Skipped[0].Name != "hns_0" {
		t.Errorf("skipped %v", found.Skipped)
	}
}

// An agent that does not see the host's /dev still knows the nodes' names.
func TestNoDeviceDirectory(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	tree.Remove("dev/infiniband")
	got := read(t, tree)
	if c := got.HCAs[0].CharDevices; len(c.UVerbs) != 1 || len(got.Skipped) != 0 || got.RDMA.RDMACM {
		t.Errorf("%+v, skipped %v, rdma_cm %t", c, got.Skipped, got.RDMA.RDMACM)
	}
}

// Class entries that are broken in the ways that a device leaves behind, or an
// attacker would.
func TestBrokenEntries(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	tree.Link("sys/class/infiniband/gone", "sys/devices/virtual/infiniband/gone")
	tree.Link("sys/class/infiniband/loop", "sys/class/infiniband/loop")
	tree.Link("sys/class/infiniband_verbs/loop", "sys/class/infiniband_verbs/loop")
	tree.Dir("sys/class/infiniband/mlx5_0/ports/0x1")
	huge := strings.Repeat("x", 1<<20)
	tree.RDMA("sys/devices/virtual", sysfstest.RDMA{
		Name: "huge", UVerbs: -1, UMAD: -1, ISSM: -1,
		Attributes: map[string]string{"node_desc": huge, "hca_type": huge, "fw_ver": huge, "board_id": huge, "node_type": huge},
		Ports:      []map[string]string{{"state": huge, "rate": huge, "link_layer": huge, "lid": huge, "gids/0": huge}},
	})
	got := read(t, tree)
	reasons := map[string]int{}
	for _, s := range got.Skipped {
		reasons[s.Name]++
		if len(s.Reason) > 300 {
			t.Errorf("%s: a reason of %d bytes", s.Name, len(s.Reason))
		}
	}
	if diff := cmp.Diff(map[string]int{"gone": 1, "loop": 1, "huge/ports/1": 3, "mlx5_0/ports/0x1": 1}, reasons); diff != "" || len(got.HCAs) != 10 {
		t.Errorf("%d HCAs, skipped (-want +got):\n%s\n%v", len(got.HCAs), diff, got.Skipped)
	}
	if h := got.HCAs[1]; h.Name != "mlx5_0" || len(h.Ports) != 1 {
		t.Errorf("%s has %d ports beside one without a number", h.Name, len(h.Ports))
	}
	b, err := json.Marshal(got.HCAs[0])
	if err != nil || got.HCAs[0].Name != "huge" || len(b) > 2000 {
		t.Errorf("%s has %d bytes, %v", got.HCAs[0].Name, len(b), err)
	}
}

func TestNetnsMode(t *testing.T) {
	for _, tt := range []struct {
		name, mode string
		err        error
		probe      machine.Probe
	}{
		{name: "shared", mode: "shared", probe: machine.Probe{Name: netlinkProbe, State: machine.ProbeOK}},
		{
			name: "no ib_core", err: errNoFamily,
			probe: machine.Probe{
				Name: netlinkProbe, State: machine.ProbeAbsent, Reason: "the kernel has no RDMA netlink: ib_core is not loaded",
			},
		},
		{
			name: "a fault", err: errors.New("permission denied"),
			probe: machine.Probe{Name: netlinkProbe, State: machine.ProbeFailed, Reason: "permission denied"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &Reader{timeout: time.Hour}
			mode, probe := r.netnsMode(t.Context(), func() (string, error) { return tt.mode, tt.err })
			if diff := cmp.Diff(tt.probe, probe); diff != "" || mode != tt.mode {
				t.Errorf("mode %q, probe (-want +got):\n%s", mode, diff)
			}
		})
	}
}

// The kernel answers netlink within the call that sends: that hangs with a
// device that is being removed, whatever the socket's timeout.
func TestNetlinkHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		r := &Reader{timeout: time.Second}
		r.netnsMode(t.Context(), func() (string, error) { return "shared", nil })
		mode, probe := r.netnsMode(t.Context(), func() (string, error) {
			<-release
			return "", nil
		})
		want := machine.Probe{Name: netlinkProbe, State: machine.ProbeTimeout, Reason: "did not answer in 1s"}
		if diff := cmp.Diff(want, probe); diff != "" || mode != "shared" {
			t.Errorf("mode %q, probe (-want +got):\n%s", mode, diff)
		}
	})
}

// The kernel shows an RDMA device in its own network namespace only, if the mode
// is exclusive: then "no device" needs that word.
func TestElsewhere(t *testing.T) {
	none := machine.Probe{Name: "rdma", State: machine.ProbeAbsent, Reason: "no device in /sys/class/infiniband"}
	some := machine.Probe{Name: "rdma", State: machine.ProbeOK}
	if got := elsewhere(none, "exclusive"); !strings.Contains(got.Reason, "no device in /sys/class/infiniband; network namespaces") {
		t.Errorf("%+v", got)
	}
	if a, b := elsewhere(none, "shared"), elsewhere(some, "exclusive"); a != none || b != some {
		t.Errorf("%+v, %+v", a, b)
	}
}

// An HCA that a CNI plugin has moved into a pod's network namespace leaves the class
// of devices, and its uverbs stays in that of device nodes.
func TestDeviceInAPodsNamespace(t *testing.T) {
	tree := sysfstest.New(t)
	port := []map[string]string{{"state": "4: ACTIVE", "link_layer": "InfiniBand"}}
	for i, function := range []string{"0000:00:04.0", "0000:00:04.2"} {
		tree.RDMA(tree.PCI(nic("pci0000:00/"+function)), sysfstest.RDMA{
			Name: fmt.Sprintf("mlx5_%d", i), UVerbs: i, UMAD: -1, ISSM: -1, Ports: port,
			Attributes: map[string]string{"node_guid": fmt.Sprintf("0002:c903:0000:123%d", i)},
		})
	}
	if err := os.Remove(filepath.Join(tree.Sys(), "class/infiniband/mlx5_1")); err != nil {
		t.Fatal(err)
	}
	r := New(sysfs.New(tree.Sys()), tree.Dev(), 0)
	all, err := r.list()
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.HCA{{
		Name: "mlx5_1", PCI: "0000:00:04.2", Elsewhere: true, Ports: []machine.Port{},
		CharDevices: machine.CharDevices{UVerbs: []string{"uverbs1"}},
	}}
	if diff := cmp.Diff(want, r.inOtherNamespaces(all)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The SMI device of an HCA of several planes names the HCA as its parent, as rxe
// names a network device: it is hardware.
func TestSMIDevice(t *testing.T) {
	tree := sysfstest.New(t)
	dir := tree.PCI(nic("pci0000:00/0000:03:00.0"))
	port := map[string]string{"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand"}
	tree.RDMA(dir, sysfstest.RDMA{Name: "mlx5_0", UVerbs: 0, UMAD: 0, ISSM: -1, Ports: []map[string]string{port}})
	tree.RDMA(dir, sysfstest.RDMA{
		Name: "smi1", UVerbs: -1, UMAD: 1, ISSM: -1, Ports: []map[string]string{port, port},
		Attributes: map[string]string{"parent": "mlx5_0"},
	})
	hcas := read(t, tree).HCAs
	if len(hcas) != 2 || hcas[1].Name != "smi1" || hcas[1].Virtual || hcas[1].PCI != "0000:03:00.0" {
		t.Errorf("%+v", hcas)
	}
}

// udev renames a device, and its nodes stay where they were: only ibdev changes.
func TestRenamedDevice(t *testing.T) {
	tree := sysfstest.New(t)
	dir := tree.PCI(nic("pci0000:00/0000:03:00.0"))
	tree.RDMA(dir, sysfstest.RDMA{Name: "mlx5_0", UVerbs: 0, UMAD: -1, ISSM: -1, Ports: []map[string]string{{"state": "4: ACTIVE"}}})
	reader := New(sysfs.New(tree.Sys()), tree.Dev(), 0)
	reader.Read(t.Context())
	class := filepath.Join(tree.Sys(), "class")
	if err := os.Rename(filepath.Join(class, "infiniband/mlx5_0"), filepath.Join(class, "infiniband/rocep3s0")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(class, "infiniband_verbs/uverbs0/ibdev"), []byte("rocep3s0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hcas := reader.Read(t.Context()).HCAs
	if len(hcas) != 1 || hcas[0].Name != "rocep3s0" || !slices.Equal(hcas[0].CharDevices.UVerbs, []string{"uverbs0"}) {
		t.Errorf("%+v", hcas)
	}
}
