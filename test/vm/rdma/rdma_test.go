//go:build vmguest && linux

// Package rdma_test runs inside a guest of test/vm and holds discovery against
// the kernel's own RDMA stack: soft RoCE devices on three network devices.
package rdma_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/vm/guest"
)

func TestMain(m *testing.M) {
	if os.Getenv(envElsewhere) == "" {
		guest.Main(m)
		return
	}
	if err := scanElsewhere(); err != nil {
		fmt.Fprintln(os.Stderr, "scan elsewhere:", err)
		os.Exit(1) //nolint:forbidigo // This is the child's main.
	}
}

func scan(t *testing.T) *machine.Machine {
	t.Helper()
	return host.New(host.Options{NodeName: "guest"}).Scan(t.Context())
}

// rxe is what a soft RoCE device on ethN looks like; N is the end of the MAC
// address, and so of the GUID, and the number of its device nodes.
func rxe(name, n string) machine.HCA {
	guid := "5054:00ff:fe00:000" + n
	h := machine.HCA{
		Name: name, NodeGUID: guid, SysImageGUID: guid, Driver: "rdma_rxe", NodeType: "CA", NodeDesc: "rxe",
		Virtual: true, Role: machine.RoleVirtual,
		Ports: []machine.Port{{
			Number: 1, GUID: guid, LinkLayer: machine.Ethernet, State: machine.PortActive, PhysState: "LinkUp",
			RateGbps: new(2.5), Rate: "2.5 Gb/sec (1X SDR)",
			Netdevs: []machine.Netdev{{Name: "eth" + n, Type: "ether", OperState: "up"}},
		}},
		CharDevices: machine.CharDevices{UVerbs: []string{"uverbs" + n}, UMAD: []string{"umad" + n}},
	}
	// Newer kernels make no issm for ports without a subnet manager.
	if _, err := os.Stat("/dev/infiniband/issm" + n); err == nil {
		h.CharDevices.ISSM = []string{"issm" + n}
	}
	return h
}

func TestSoftRDMAIsVirtualAndWhole(t *testing.T) {
	guest.SoftRDMA(t, "eth0", "eth1", "eth2")
	m := scan(t)
	want := machine.Machine{
		HCAs: []machine.HCA{rxe("rxe0", "0"), rxe("rxe1", "1"), rxe("rxe2", "2")},
		RDMA: machine.RDMA{NetnsMode: "shared", RDMACM: true},
	}
	got := machine.Machine{HCAs: m.HCAs, RDMA: m.RDMA, Skipped: m.Skipped}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
	for _, probe := range m.Probes {
		isGPU := slices.ContainsFunc(host.Vendors(), func(v *gpu.Vendor) bool { return v.Probe == probe.Name })
		if want := machine.ProbeOK; probe.State != want && !isGPU {
			t.Errorf("probe %s is %s: %s", probe.Name, probe.State, probe.Reason)
		}
	}
}

func TestDeviceNodesAreThere(t *testing.T) {
	guest.SoftRDMA(t, "eth0", "eth1", "eth2")
	for _, h := range scan(t).HCAs {
		nodes := slices.Concat(h.CharDevices.UVerbs, h.CharDevices.UMAD, h.CharDevices.ISSM)
		for _, name := range nodes {
			info, err := os.Stat(filepath.Join("/dev/infiniband", name))
			if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
				t.Errorf("%s: %s is not a device node: %v", h.Name, name, err)
			}
		}
		f, err := os.OpenFile(filepath.Join("/dev/infiniband", h.CharDevices.UVerbs[0]), os.O_RDWR, 0)
		if err != nil {
			t.Errorf("%s: %v", h.Name, err)
			continue
		}
		f.Close()
	}
}
