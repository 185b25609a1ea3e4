//go:build vmguest && linux

package rdma_test

import (
	"errors"
	"os"
	"runtime"
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
	if got := scan(t, host.Options{}).RDMA.NetnsMode; got != "exclusive" {
		t.Errorf("the mode is %q", got)
	}
}

// An agent without hostNetwork, in shared mode: it sees every RDMA device and
// knows its network device's name, but not that device's state.
func TestScanFromAnotherNetworkNamespace(t *testing.T) {
	guest.SoftRDMA(t, "eth0", "eth1")
	const sys = "/tmp/sys"
	found := make(chan *machine.Machine, 1)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with its namespaces.
		err := errors.Join(
			unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_FS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			os.MkdirAll(sys, 0o755),
			unix.Mount("sysfs", sys, "sysfs", 0, ""))
		if err != nil {
			failed <- err
			return
		}
		found <- scan(t, host.Options{SysfsRoot: sys})
	}()
	var m *machine.Machine
	select {
	case err := <-failed:
		t.Fatal(err)
	case m = <-found:
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
