package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Up and Down set a network device's administrative state.
func Up(netdev string) error {
	if err := netlink.LinkSetUp(link(netdev)); err != nil {
		return fmt.Errorf("%s up: %w", netdev, err)
	}
	return nil
}

// Down is Up's opposite.
func Down(netdev string) error {
	if err := netlink.LinkSetDown(link(netdev)); err != nil {
		return fmt.Errorf("%s down: %w", netdev, err)
	}
	return nil
}

func link(netdev string) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: netdev}}
}

// Bond makes an LACP bond of network devices, which go down for it, and brings
// it up.
func Bond(name string, slaves ...string) error {
	bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: name})
	bond.Mode = netlink.BOND_MODE_802_3AD
	if err := netlink.LinkAdd(bond); err != nil {
		return fmt.Errorf("bond %s: %w", name, err)
	}
	for _, slave := range slaves {
		if err := errors.Join(Down(slave), netlink.LinkSetMasterByIndex(link(slave), bond.Index)); err != nil {
			return fmt.Errorf("bond %s: %w", name, err)
		}
	}
	return Up(name)
}

// Unbond takes a bond away and brings the network devices back up.
func Unbond(name string, slaves ...string) error {
	err := netlink.LinkDel(link(name))
	for _, slave := range slaves {
		err = errors.Join(err, Up(slave))
	}
	return err
}

// SoftRDMA removes every RDMA device of the guest, then makes rxe0 on the first
// network device, rxe1 on the second and so on, and waits until their ports
// are active. Every test that needs RDMA begins with it, so none depends on
// another.
func SoftRDMA(t *testing.T, netdevs ...string) {
	t.Helper()
	entries, err := os.ReadDir("/sys/class/infiniband")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		RemoveRDMA(t, entry.Name())
	}
	for i, netdev := range netdevs {
		if err := Up(netdev); err != nil {
			t.Fatal(err)
		}
		AddRXE(t, fmt.Sprintf("rxe%d", i), netdev)
	}
	// The network device's own state follows up to a second later, by the
	// kernel's link watch.
	for i, netdev := range netdevs {
		awaitFile(t, fmt.Sprintf("/sys/class/infiniband/rxe%d/ports/1/state", i), "4: ACTIVE")
		awaitFile(t, "/sys/class/net/"+netdev+"/operstate", "up")
	}
}

func awaitFile(t *testing.T, file, want string) {
	t.Helper()
	Eventually(t, file+" is "+want, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.TrimSpace(string(text)) == want
	})
}

// AddRXE makes a soft RDMA device on a network device.
func AddRXE(t *testing.T, name, netdev string) {
	t.Helper()
	if err := netlink.RdmaLinkAdd(name, "rxe", netdev); err != nil {
		t.Fatalf("RDMA device %s on %s: %v", name, netdev, err)
	}
}

// RemoveRDMA removes a soft RDMA device.
func RemoveRDMA(t *testing.T, name string) {
	t.Helper()
	if err := netlink.RdmaLinkDel(name); err != nil {
		t.Fatalf("remove the RDMA device %s: %v", name, err)
	}
}

// RenameRDMA renames an RDMA device, as udev's rules do.
func RenameRDMA(t *testing.T, from, to string) {
	t.Helper()
	for _, device := range RDMALinks(t) {
		if device.Attrs.Name != from {
			continue
		}
		if err := netlink.RdmaLinkSetName(device, to); err != nil {
			t.Fatalf("rename %s to %s: %v", from, to, err)
		}
		return
	}
	t.Fatalf("there is no RDMA device %s to rename", from)
}

// RDMALinks lists the RDMA devices as netlink has them.
func RDMALinks(t *testing.T) []*netlink.RdmaLink {
	t.Helper()
	for range 5 {
		links, err := netlink.RdmaLinkList() //nolint:forbidigo // This is the loop that retries.
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			t.Fatalf("list RDMA devices: %v", err)
		}
		return links
	}
	t.Fatal("list RDMA devices: interrupted five times")
	return nil
}

// Eventually polls the kernel until ok, at most ten seconds.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in ten seconds: %s", what)
		case <-poll.C:
		}
	}
}
