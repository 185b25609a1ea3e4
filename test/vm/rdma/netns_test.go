//go:build vmguest && linux

package rdma_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/vm/guest"
)

func TestNetnsModeIsReadFromNetlink(t *testing.T) {
	guest.SoftRDMA(t, "eth0")
	if err := netlink.RdmaSystemSetNetnsMode("exclusive"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netlink.RdmaSystemSetNetnsMode("shared"); err != nil {
			t.Error(err)
		}
	}()
	if got := scan(t).RDMA.NetnsMode; got != "exclusive" {
		t.Errorf("the mode is %q", got)
	}
}

// envElsewhere makes a child of this test binary the agent of the next test.
const envElsewhere = "HEDDLE_SCAN_ELSEWHERE"

// scanElsewhere is that agent: alone in namespaces of its own, it mounts the
// /sys that belongs to them, scans, and writes the dump.
func scanElsewhere() error {
	const sys = "/tmp/sys"
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		os.MkdirAll(sys, 0o755),
		unix.Mount("sysfs", sys, "sysfs", 0, ""))
	if err != nil {
		return err
	}
	m := host.New(host.Options{NodeName: "guest", SysfsRoot: sys}).Scan(context.Background())
	dump, err := machine.Encode(m)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(dump)
	return err
}

// An agent without hostNetwork, in shared mode: it sees every RDMA device and
// knows its network device's name, but not that device's state.
func TestScanFromAnotherNetworkNamespace(t *testing.T) {
	guest.SoftRDMA(t, "eth0", "eth1")
	agent := exec.CommandContext(t.Context(), "/proc/self/exe")
	agent.Env = []string{envElsewhere + "=1"}
	agent.Stderr = os.Stderr
	agent.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	dump, err := agent.Output()
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Decode(dump)
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.HCA{rxe("rxe0", "0"), rxe("rxe1", "1")}
	for i := range want {
		nic := &want[i].Ports[0].Netdevs[0]
		nic.Type, nic.OperState = "", ""
	}
	if diff := cmp.Diff(want, m.HCAs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("HCAs (-want +got):\n%s", diff)
	}
	if m.RDMA.NetnsMode != "shared" {
		t.Errorf("the mode is %q", m.RDMA.NetnsMode)
	}
}
