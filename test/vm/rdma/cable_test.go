//go:build vmguest && linux

package rdma_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/vm/guest"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/ib"
	"github.com/heddle-dev/heddle/topo/worker/lldp"
)

// The kernel's own ib_umad takes our requests. A RoCE port is like a virtual
// function's: it has no queue pair 0, and queries leave it by the other.
func TestManagementDatagramsNeedInfiniBand(t *testing.T) {
	guest.SoftRDMA(t, "eth0")
	p := worker.Port{UMAD: []string{"umad0"}, Subnet: "fe80000000000000", Rail: v1alpha1.Rail{
		ID: "x", HCA: "rxe0", Port: 1, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
	}}
	ask := func(p worker.Port) string {
		source := ib.New(func(device string) (*ib.UMAD, error) { return ib.OpenUMAD("/dev/infiniband/" + device) }, "", nil)
		r := source.Discover(t.Context(), worker.Query{Ports: []worker.Port{p}, Topology: config.Default().Topology})
		if len(r.Links) != 0 || len(r.Skipped) != 1 {
			t.Fatalf("%+v", r)
		}
		return r.Skipped[0].Reason
	}
	if reason := ask(p); !strings.Contains(reason, "the device carries no SMPs") {
		t.Errorf("a RoCE port: %s", reason)
	}
	p.Virtual = true
	if reason := ask(p); !strings.Contains(reason, "no subnet manager gave the port a LID") {
		t.Errorf("without LID: %s", reason)
	}
	p.LID, p.SMLID = 7, 1
	// The kernel takes agent and address, and looks for the administrator's GID among the neighbors.
	if reason := ask(p); !strings.Contains(reason, "(LinkRecord: "+unix.ETIMEDOUT.Error()) {
		t.Errorf("a query: %s", reason)
	}
	if _, err := ib.OpenUMAD("/dev/infiniband/umad9"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no port: %v", err)
	}
}

// hello is the frame of a switch; its chassis is named by one digit.
func hello(chassis byte) []byte {
	frame := []byte{
		0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, chassis, 0x88, 0xcc,
		2, 7, 4, 2, 0, 0, 0, 0xee, chassis, // chassis ID, by MAC address
		4, 5, 5, 's', 'w', 'p', '1', // port ID, an interface
		6, 2, 0, 120, // time to live
		10, 4, 'l', 'e', 'a', 'f', // the system's name
		0, 0,
	}
	return append(frame, make([]byte, 60-len(frame))...)
}

// send sends a frame out of a network device.
func send(t *testing.T, netdev string, frame []byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(netdev)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrLinklayer{Ifindex: int(request.Uint32()), Halen: 6, Addr: [8]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}}
	if err := unix.Sendto(fd, frame, 0, to); err != nil {
		t.Fatal(err)
	}
}

// A RoCE LAG: one HCA on two cables, each of which has its own switch port.
func TestLLDPOnTheMembersOfABond(t *testing.T) {
	guest.SoftRDMA(t, "eth2")
	if err := guest.Bond("bond1", "eth0", "eth1"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := guest.Unbond("bond1", "eth0", "eth1"); err != nil {
			t.Error(err)
		}
	}()
	guest.AddRXE(t, "rxe1", "bond1")
	defer guest.RemoveRDMA(t, "rxe1")
	var lag []worker.Port
	guest.Eventually(t, "rxe1 on bond1", func() bool {
		lag = nil
		ports, _ := worker.Ports(scan(t), nil)
		for _, p := range ports {
			if p.HCA == "rxe1" && p.Netdev != "" {
				lag = append(lag, p)
			}
		}
		return len(lag) == 2 && lag[0].Netdev == "eth0" && lag[1].Netdev == "eth1" && lag[1].Plane == 1
	})
	source := lldp.New(nil, slog.New(slog.DiscardHandler))
	defer source.Close()
	q := worker.Query{Ports: lag, Topology: config.Default().Topology}
	if r := source.Discover(t.Context(), q); len(r.Skipped) != 0 {
		t.Errorf("skipped %v", r.Skipped)
	}
	// All devices of the guest are on one hub: a frame out of eth2 reaches both.
	var want []worker.Link
	for _, p := range lag {
		want = append(want, worker.Link{
			PortKey: p.Key(), Switch: v1alpha1.Switch{ID: "02:00:00:00:ee:07", Name: "leaf"}, SwitchPort: "swp1", Confidence: 100,
		})
	}
	guest.Eventually(t, "a switch on both members", func() bool {
		send(t, "eth2", hello(7))
		return cmp.Equal(want, source.Discover(t.Context(), q).Links)
	})
	if err := guest.Down("eth1"); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, "eth1 is down", func() bool {
		r := source.Discover(t.Context(), q)
		return cmp.Equal(want[:1], r.Links) && r.NoLink[lag[1].Key()] == worker.Unavailable
	})
}
